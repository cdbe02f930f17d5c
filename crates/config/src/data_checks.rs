//! Checks of keys that say how the data is used: variables of the chat template, and images.

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

/// Requires a column of images where other keys are about them, another than the prompt's, and an area of images.
pub(super) fn images(data: &Data, at: &Provenance) -> Result<()> {
    let refuse =
        |key: &str, message: &str, hint: &str| Err(at.error("contradictory-keys", key, message).hint(hint));
    let (min, max) = (data.image_pixels_min, data.image_pixels_max);
    let asked = [
        // Areas are also for images that no column names: those of a request, and of tasks that draw.
        ("data.image_folder", data.image_folder.is_some()),
    ];
    match (&data.images, asked.iter().find(|(_, is_set)| *is_set)) {
        (None, Some((key, _))) => {
            let message = format!("`{key}` is about images, and data.images names no column with them");
            refuse(key, &message, "set data.images = \"images\"")
        }
        (Some(column), _) if *column == data.prompt_column => {
            let message = format!("data.images = \"{column}\" is the column with the prompt");
            refuse("data.images", &message, "name the column with the images, or set data.prompt_column")
        }
        _ if min.zip(max).is_some_and(|(min, max)| min > max) => {
            let message = "`data.image_pixels_min` is above data.image_pixels_max";
            refuse("data.image_pixels_min", message, "exchange the two")
        }
        _ => Ok(()),
    }
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
