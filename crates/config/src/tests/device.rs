//! Keys of a card in a run on the CPU.

use super::{GOOD, load_text};

#[test]
fn keys_of_a_card_are_noted_on_the_cpu() {
    for (key, set) in [("run.checked", "run.checked=true"), ("memory.device", "memory.device=1GiB")] {
        let notes =
            |device: &str| load_text(GOOD, &[set, &format!("run.device={device}")], &[]).unwrap().notes;
        assert_eq!(notes("cpu"), [format!("`{key}` changes nothing: run.device = \"cpu\"")]);
        // A run file for several machines may set them.
        assert!(notes("auto").is_empty() && notes("cuda").is_empty(), "{key}");
    }
    assert!(load_text(GOOD, &["run.device=cpu"], &[]).unwrap().notes.is_empty());
}
