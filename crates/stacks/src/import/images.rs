//! Writes the keys about images: the column, the areas, and whether the tower is trained.

use super::draft::Draft;
use crate::setting::{flag, integer};
use crate::unbuilt::{self, Unbuilt};
use serde_json::{Map, Value};

/// Why a setting about images is left out of a run on text.
const OF_TEXT: &str = "prompts are text, which moves no layer of pictures";
/// Why an adapter leaves the tower alone.
const OF_ADAPTER: &str = "adapters are of layers of the text, and the tower stays as it is";

/// A stack's settings about images, each by its first name; empty if it has none.
#[derive(Clone, Copy)]
pub(crate) struct Of {
    /// Names the column, or has a table whose `image` names it.
    pub column: &'static str,
    /// Freezes the tower, or trains it.
    pub frozen: &'static str,
    /// What holds without that setting.
    pub is_frozen: bool,
    /// Freezes what joins the tower to the text.
    pub joint_frozen: &'static str,
    /// The largest area of an image.
    pub pixels_max: &'static str,
    /// True if MIN_PIXELS and MAX_PIXELS of the environment are read.
    pub has_variables: bool,
    /// Layers that an adapter leaves out.
    pub excluded: &'static str,
    /// Puts an adapter on the tower.
    pub adapted: &'static str,
}

impl Of {
    /// No settings, and a tower that is trained.
    pub const NONE: Of = Of {
        column: "",
        frozen: "",
        is_frozen: false,
        joint_frozen: "",
        pixels_max: "",
        has_variables: false,
        excluded: "",
        adapted: "",
    };
}

/// Writes the keys, after the method, the data and the adapter. A model that sees by its name has the column `images`,
/// which rows may lack, where no setting names another.
pub(crate) fn images(draft: &mut Draft, of: &Of) {
    let is_excluded = excluded(draft, of);
    if draft.misses("data.images", &[of.column]) {
        return;
    }
    let named = draft.take_text(of.column);
    let column = match &named {
        Some(taken) => match column_of(&taken.value) {
            Some(column) => Some((column, taken.from.clone())),
            None => return draft.is_not_built(taken, Unbuilt::Images),
        },
        None => {
            // Of a path that is not known as a whole the last part says it.
            let is_named =
                |is_it: fn(&str) -> bool| draft.entries.iter().any(|entry| is_it(&entry.given.value));
            let sees = is_named(unbuilt::sees) || is_named(unbuilt::may_see) && says_so(draft, of);
            sees.then(|| {
                ("images".to_string(), "the model sees; rows without the column are text".to_string())
            })
        }
    };
    let Some((column, from)) = column else {
        for name in [of.frozen, of.joint_frozen, of.pixels_max, of.adapted] {
            draft.leave_out(name, OF_TEXT);
        }
        return;
    };
    draft.set_text("data.images", &column, &from);
    areas(draft, of);
    tower(draft, of, is_excluded);
}

/// Returns true if a setting or a variable about images is written out, of a model that is trained on text as well.
fn says_so(draft: &Draft, of: &Of) -> bool {
    let has_variable = of.has_variables && draft.variable("MAX_PIXELS").is_some();
    has_variable || [of.pixels_max, of.frozen].iter().any(|name| draft.is_written(name))
}

/// Returns the column in `images`, or in `{"image": "images"}`; none if a table has videos or sounds too.
fn column_of(text: &str) -> Option<String> {
    if !text.starts_with('{') {
        return Some(text.to_string());
    }
    let table: Map<String, Value> = serde_json::from_str(&text.replace('\'', "\"")).ok()?;
    let column = table.get("image")?.as_str()?.to_string();
    (table.len() == 1).then_some(column)
}

/// Takes the layers that an adapter leaves out. Returns true if they are those of the tower.
fn excluded(draft: &mut Draft, of: &Of) -> bool {
    if let Some(given) = draft.unread(of.excluded).cloned() {
        draft.refuse(&given, Unbuilt::Adapters);
        return false;
    }
    let Some(taken) = draft.take_text(of.excluded) else { return false };
    let is_tower = taken.value.trim_matches(['.', '*', '[', ']', '(', ')', '"', '\'', ' ']) == "visual";
    if is_tower {
        draft.leave(&taken, OF_ADAPTER);
    } else if taken.value != "[]" {
        draft.is_not_built(&taken, Unbuilt::Adapters);
    }
    is_tower
}

fn areas(draft: &mut Draft, of: &Of) {
    if let Some((pixels, taken)) = draft.take_count(of.pixels_max) {
        draft.set_toml("data.image_pixels_max", pixels, &taken.from);
    }
    for (name, key) in [("MIN_PIXELS", "data.image_pixels_min"), ("MAX_PIXELS", "data.image_pixels_max")] {
        let pixels = draft.variable(name).and_then(integer).filter(|pixels| *pixels > 0);
        if let Some(pixels) = pixels.filter(|_| of.has_variables && draft.get(key).is_none()) {
            draft.set_toml(key, pixels, name);
        }
    }
}

fn tower(draft: &mut Draft, of: &Of, is_excluded: bool) {
    let has_adapter = ["lora.rank", "lora.adapter"].iter().any(|key| draft.get(key).is_some());
    let frozen = draft.take_text(of.frozen);
    let is_frozen = frozen.as_ref().and_then(|taken| flag(&taken.value)).unwrap_or(of.is_frozen);
    let from =
        frozen.as_ref().map_or("the tower is trained by default there".into(), |taken| taken.from.clone());
    if let Some(taken) = draft.take(of.joint_frozen)
        && flag(&taken.value).unwrap_or(true) != is_frozen
    {
        if is_frozen {
            draft.is_not_built(&taken, Unbuilt::Frozen);
        } else {
            draft.change(&taken, "the tower is trained with the part that joins it to the text here");
        }
    }
    if let Some(taken) = draft.take(of.adapted) {
        if flag(&taken.value).unwrap_or(true) {
            draft.set_text("model_options.tower", "adapters", &taken.from);
        }
        return;
    }
    // All linear layers of a model are those of its tower too.
    let is_of_all = draft.get("lora.targets").is_none_or(|targets| targets.contains("all-linear"));
    let adapts = draft.get("lora.rank").is_some() && is_of_all && !is_excluded;
    match frozen {
        _ if is_frozen => {}
        _ if adapts => draft.set_text("model_options.tower", "adapters", &from),
        Some(taken) if has_adapter => draft.change(&taken, OF_ADAPTER),
        _ if has_adapter => {}
        _ => draft.set_text("model_options.tower", "train", &from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_name_or_that_of_a_table() {
        for (text, expect) in [
            ("images", Some("images")),
            ("{\"image\": \"images\"}", Some("images")),
            ("{'image': 'pictures'}", Some("pictures")),
            ("{\"image\": \"images\", \"video\": \"videos\"}", None),
            ("{\"video\": \"videos\"}", None),
            ("{\"image\": 3}", None),
            ("{", None),
        ] {
            assert_eq!(column_of(text).as_deref(), expect, "{text}");
        }
    }
}
