//! Where code may tell devices apart: in the device crates, and in `devices`, whose row per device answers others.

use crate::finding::Finding;
use crate::rooms::room_of;
use crate::source::Source;

/// Words that tell devices apart, and the rooms that may use each.
const WORDS: [(&str, &[&str]); 6] = [
    ("DeviceKind", &["device", "devices", "cpu", "cuda"]),
    ("plimsoll_cpu", &["devices", "cpu"]),
    ("plimsoll_cuda", &["devices", "cuda"]),
    ("RunDevice", &["config"]),
    ("= = \"cpu\"", &["devices"]),
    ("= = \"cuda\"", &["devices"]),
];

/// Reports product code in other rooms that tells devices apart.
pub fn check(source: &Source) -> Vec<Finding> {
    let Some((room, _)) = room_of(&source.path) else { return Vec::new() };
    let refused = WORDS.iter().filter(|(_, rooms)| !rooms.contains(&room));
    let places =
        refused.flat_map(|(word, _)| source.find(word).into_iter().map(move |at| (word, at[0].line)));
    let message = |word| {
        format!(
            "`{word}` tells devices apart: ask the device's row, crates/devices/src/row.rs, for what you need"
        )
    };
    places.map(|(word, line)| Finding::new(&source.path, line, message(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;

    #[test]
    fn which_device_it_is_only_its_row_knows() {
        let text = "fn a(row: &DeviceRow) -> bool { row.name() == \"cuda\" }\n#[cfg(test)] mod tests { use plimsoll_cpu::LAYOUTS; }";
        let lines = |path| check(&source(path, text)).iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines("crates/plan/src/search.rs"), [1]);
        assert!(
            lines("crates/devices/src/row.rs").is_empty() && lines("crates/plan/tests/it/a.rs").is_empty()
        );
        assert_eq!(check(&source("crates/rl/src/a.rs", "use plimsoll_config::RunDevice;")).len(), 1);
        assert!(check(&source("crates/config/src/a.rs", "use crate::RunDevice;")).is_empty());
    }
}
