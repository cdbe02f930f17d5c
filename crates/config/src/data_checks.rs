//! Checks of keys that say how the data is used: variables of the chat template.

use super::provenance::Provenance;
use super::sections::Data;
use super::values::{AnsweredPrompts, TrainOn};
use plimsoll_base::Result;

/// Requires that variables of the template reach it: that there is one, and that it does not have them from the
/// conversation.
pub(super) fn template_args(data: &Data, at: &Provenance) -> Result<()> {
    let refuse = |name: &str, what: &str, hint: &str| {
        let key = format!("data.template_args.{name}");
        Err(at.error("bad-value", &key, &format!("`{key}` {what}")).hint(hint.to_string()))
    };
    for name in data.template_args.keys() {
        if ["messages", "tools", "add_generation_prompt"].contains(&name.as_str()) {
            return refuse(name, "is what the conversation itself gives", "remove it");
        }
        if data.chat_template.as_deref() == Some("none") {
            let hint = "remove it, or data.chat_template";
            return refuse(name, "has no template to go to: data.chat_template is \"none\"", hint);
        }
    }
    Ok(())
}

impl AnsweredPrompts {
    pub(crate) fn is_error(&self) -> bool {
        *self == AnsweredPrompts::Error
    }
}

impl TrainOn {
    pub(crate) fn is_last(&self) -> bool {
        *self == TrainOn::Last
    }
}
