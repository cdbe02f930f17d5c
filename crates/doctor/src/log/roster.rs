//! Reads what a list of pods or of jobs says: the last state of each. A run ended well by it only if all of them did.

use super::text::regex;
use regex::Regex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

/// Most members whose state is remembered; with more of them a list ends nothing.
const MEMBERS_MAX: usize = 256;

/// A row, with the name of its member if it has one, and the state.
static ROWS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    [
        // kubectl get pods: `grpo-0   0/1   Completed   0   5h`, with its namespace before it or not.
        r"(?:^|\s)(?P<name>[\w./-]+)\s+\d+/\d+\s+(?P<state>[A-Z][\w:/-]*)\s+\d+(?:\s|$)",
        // kubectl get jobs, and operators: `dpo   Complete   1/1   3h`, `dpo   Succeeded   3h`; the age is last.
        r"^(?P<name>[\w./-]+)\s+(?P<state>Completed?|Succeeded|Running|Created|Restarting|Suspended|Failed)\s(?:.*\s)?\d+[smhd][\dsmhd]*\s*$",
        // sacct: `88121.0   python   COMPLETED   0:0`.
        r"^(?P<name>\d[\w.+]*)\s[\w\s.+-]*?\b(?P<state>COMPLETED|COMPLETING|RUNNING|PENDING|REQUEUED|SUSPENDED|FAILED|TIMEOUT|CANCELLED|PREEMPTED|NODE_FAIL|OUT_OF_MEMORY)\s+\d+:\d+",
        // A description: `Status: Succeeded`, `pod/grpo-0 phase: Running`, `"phase": "Pending"`.
        r#"^(?:(?P<name>[\w./-]+) )?['"]?(?:(?i:job) ?_?)?(?:[Pp]hase|[Ss]tatus|STATUS)['"]?\s*[:=]\s*['"]?(?P<state>Succeeded|SUCCEEDED|Running|RUNNING|Pending|PENDING|Failed|FAILED|Unknown)['"]?[,}]*\s*$"#,
    ]
    .map(regex)
});
/// States in which a member ended well.
const ENDED_WELL: [&str; 5] = ["Completed", "Complete", "Succeeded", "COMPLETED", "SUCCEEDED"];

#[derive(Debug, Default)]
pub struct Roster {
    /// A hash of each name, and whether it ended well.
    members: Vec<(u64, bool)>,
    is_cut: bool,
}

impl Roster {
    /// Reads a row. Returns whether its member ended well, or `None` for a line that is no row.
    pub fn see(&mut self, text: &str) -> Option<bool> {
        let row = ROWS.iter().find_map(|row| row.captures(text))?;
        let has_ended = ENDED_WELL.contains(&&row["state"]);
        let mut hash = DefaultHasher::new();
        let name = row.name("name").map_or("", |name| name.as_str());
        name.rsplit('/').next().hash(&mut hash);
        let name = hash.finish();
        let is_full = self.members.len() == MEMBERS_MAX;
        match self.members.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = has_ended,
            None if is_full => self.is_cut = true,
            None => self.members.push((name, has_ended)),
        }
        Some(has_ended)
    }

    /// Returns true if every member that was seen ended well.
    pub fn have_all_ended(&self) -> bool {
        !self.is_cut && self.members.iter().all(|(_, has_ended)| *has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_lists() {
        for (text, expect) in [
            ("grpo-0   0/1   Completed   0   5h", Some(true)),
            ("train   grpo-0   1/1   Running   0   5h", Some(false)),
            ("grpo-0   0/1   Init:0/2   0   5s", Some(false)),
            ("dpo-run   Complete   1/1   3h   3h", Some(true)),
            ("sft-qwen   Succeeded   3h", Some(true)),
            ("rl-vc   Completed   4   3h2m", Some(true)),
            ("Batch Completed 3 of 9", None),
            ("88121.batch  batch    acct  8  COMPLETED      0:0", Some(true)),
            ("88121.0      python   acct  8  RUNNING      0:0", Some(false)),
            ("88121        sft      acct  8  FAILED      1:0", Some(false)),
            ("Status:           Succeeded", Some(true)),
            ("pod/grpo-0 phase: Pending", Some(false)),
            ("\"phase\": \"Succeeded\",", Some(true)),
            ("Job Status:             SUCCEEDED", Some(true)),
            ("request 12 finished, status: Succeeded with 3 retries", None),
            ("Running 12 of 40 tests", None),
            ("epoch 3/9 Completed in 4 s", None),
        ] {
            assert_eq!(Roster::default().see(text), expect, "{text}");
        }
    }

    #[test]
    fn a_list_is_over_when_all_of_it_is() {
        let mut roster = Roster::default();
        roster.see("prep-0   0/1   Completed   0   5h");
        assert!(roster.have_all_ended());
        roster.see("grpo-0   1/1   Running   0   5h");
        assert!(!roster.have_all_ended());
        roster.see("pod/grpo-0 phase: Succeeded");
        assert!(roster.have_all_ended());
    }
}
