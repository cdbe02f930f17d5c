//! Bars of tqdm: which count training steps, and which all of a run.

use super::text::regex;
use regex::Regex;
use std::sync::LazyLock;

/// A bar over training steps; bars over prompts, files and tokens have another name before them.
pub static BAR: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^(?:\d+\|\d+\|loss: [^|\n]*|[^|\n]*\b(?:train\w*|steps?|epochs?|episodes?|iter\w*|progress|update)\b[^|\n]*)?\s*\d+%\|[^|\n]*\| *([\d.,]+)(k?)/([\d.,]+)(k?) \[",
    )
});
/// Bars that do not count training steps.
pub static NO_TRAINING: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)shards|split|\bmap\b|\btokeniz|\bdownload|\bfetch|\bload|captur|processed|render|\beval|\bvalid|\btest|generat|B/s\]|examples/s|files?/s",
    )
});
/// Names of bars that count all of a run.
static WHOLE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(?:training progress|total|overall)\b"));

/// Returns true for a bar that does not count training steps.
pub fn is_foreign_bar(text: &str) -> bool {
    NO_TRAINING.is_match(text) || !BAR.is_match(text)
}

/// Returns true for the name of a bar that counts all of a run.
pub fn is_whole(name: &str) -> bool {
    WHOLE.is_match(name)
}
