//! Finds lists of possible causes: a message that names several is no evidence of any of them.

use super::text::regex;
use regex::Regex;
use std::sync::LazyLock;

/// Finds what announces a list of causes, which goes on to the end of the message.
static ANNOUNCED: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)\b(?:possible|potential|common|likely|probable|typical|usual)\s+(?:root\s+)?(?:reasons|causes|explanations|culprits)\b|\b(?:can|could|may|might)\s+(?:happen|occur|be)\s+(?:if|when|because|for\s+(?:several|many|various)|due\s+to\s+(?:one\s+of|any|several))|\b(?:one|any)\s+of\s+the\s+following\s+(?:reasons|causes|happened|occurred)|\b(?:reasons|causes)\s+(?:may|might|could|can)\s+(?:be|include)",
    )
});
/// A choice between causes, within a sentence.
static CHOICE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)\beither\s+[^.;\n()]{1,300}?\bor\b|\b(?:may|might|could)\s+(?:have\s+(?:been\s+)?|be\s+)[^.;\n()]{1,200}?\bor\b|\b(?:possible|possibly|perhaps|probably|maybe|likely)\s+[^.;\n()]{1,160}?\bor\b|\b(?:may|might|could)\s+(?:have\s+(?:been\s+)?|be\s+)\w+/\w+",
    )
});
/// A line of a list.
static ITEM: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^\s*(?:[-*•·]|\(?\d{1,2}[.)]|\(?[a-hivx]{1,4}[.)])\s+\S"));
/// The end of a sentence: a full stop in a path or a number is none.
static STOP: LazyLock<Regex> = LazyLock::new(|| regex(r"[.;](?:\s|$)|\n\s*\n|\)|$"));

/// Returns the byte ranges of `text` that only list what may have happened.
pub fn listed(text: &str) -> Vec<(usize, usize)> {
    let announced = ANNOUNCED.find_iter(text).map(|found| (found.start(), text.len()));
    let chosen = CHOICE.find_iter(text).map(|found| {
        let stop = STOP.find_at(text, found.end()).map_or(text.len(), |stop| stop.start());
        (found.start(), stop)
    });
    announced.chain(chosen).collect()
}

/// Returns true for an item of a list of possible causes; `back` are the lines before it, the nearest first.
pub fn is_item(line: &str, mut back: impl Iterator<Item = String>) -> bool {
    ITEM.is_match(line)
        && back
            .by_ref()
            .find(|above| !ITEM.is_match(above) && !above.starts_with("  "))
            .is_some_and(|above| ANNOUNCED.is_match(&above))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str, words: &str) -> bool {
        let at = text.find(words).expect("the words are there");
        listed(text).iter().any(|(from, to)| (*from..*to).contains(&at))
    }

    #[test]
    fn what_may_have_happened() {
        for (text, words) in [
            ("Either the task was preempted/died/restarted unexpectedly, or its network broke.", "preempted"),
            ("Possible reasons: out of memory, a node that was preempted, or a bug", "preempted"),
            ("The node may have been preempted or the process was killed.", "killed"),
            ("Lost it. Potential root causes: (1) it was killed by the kernel. (2) SIGSEGV.", "SIGSEGV"),
            ("This can happen if the raylet was killed.", "killed"),
            ("The peer could be dead/preempted", "preempted"),
        ] {
            assert!(holds(text, words), "{text}: {:?}", listed(text));
        }
    }

    #[test]
    fn what_is_a_fact() {
        for (text, words) in [
            ("The node was preempted. Either wait or start again.", "preempted"),
            ("Exception (either an error or timeout) detected by watchdog at work: 3", "detected"),
            ("Bus error. It is possible that workers are out of shared memory.", "shared memory"),
            ("Failed to allocate memory. Possible Cause: Available memory is insufficient.", "insufficient"),
            ("killed by signal 9 or so", "killed"),
        ] {
            assert!(!holds(text, words), "{text}: {:?}", listed(text));
        }
    }

    #[test]
    fn items_of_a_list_of_causes() {
        let above = |text: &str| text.lines().rev().map(str::to_string).collect::<Vec<String>>().into_iter();
        assert!(is_item("2. the node was preempted", above("Possible causes:\n1. it was killed")));
        assert!(!is_item("2. the node was preempted", above("What happened:\n1. it was killed")));
        assert!(!is_item("the node was preempted", above("Possible causes:\n1. it was killed")));
    }
}
