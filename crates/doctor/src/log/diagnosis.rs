//! The result of reading logs: the slug, its evidence, later events, and what remains unproven.

use serde::Serialize;
use serde_json::{Value, json};

/// The slug of a death that no class describes.
pub const UNKNOWN: &str = "unknown";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The file as the user named it, or `-`; in a folder its path.
    pub file: String,
    /// Line, from 1, as `sed -n` counts.
    pub line: u64,
    /// The line without colours and control characters, cut to 400 characters.
    pub text: String,
}

/// A later event that the first cause explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Follow {
    pub slug: String,
    /// The first line of the class.
    #[serde(flatten)]
    pub at: Evidence,
    /// Matching lines of the class; a lower bound if a file has very many.
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The class, with a page in docs/errors; `unknown` for a failure of no class; `None` if no line looks like one.
    pub slug: Option<String>,
    /// True if no line looks like a failure and a log ends well. Else silence proves nothing: a kill leaves no line.
    pub finished: bool,
    /// Lines that show it, first one first. For `unknown` the first suspicious line; empty if there is none.
    pub evidence: Vec<Evidence>,
    /// Conclusions from numbers and frames in the lines.
    pub reasons: Vec<String>,
    pub follows: Vec<Follow>,
    pub unproven: Vec<String>,
    /// First steps for this case, before the remedies of the page.
    pub first_steps: Vec<String>,
    /// Frameworks named in the logs; remedies in the settings of others do not help.
    pub frameworks: Vec<String>,
    pub files_read: u64,
    /// Bytes of text read, after unpacking.
    pub bytes_read: u64,
    /// Files not read, or not to their end, with the reason.
    pub not_read: Vec<String>,
}

impl Diagnosis {
    /// Returns true for a class or a suspicious line.
    pub fn found(&self) -> bool {
        self.slug.is_some()
    }

    /// Returns the object of `--json`. `remedies` are those of the page.
    pub fn to_json(&self, remedies: &[String]) -> Value {
        let all = [&self.first_steps, remedies].concat();
        json!({
            "slug": self.slug,
            "finished": self.finished,
            "evidence": self.evidence,
            "reasons": self.reasons,
            "follows": self.follows,
            "unproven": self.unproven,
            "remedies": all,
            "files_read": self.files_read,
            "bytes_read": self.bytes_read,
            "not_read": self.not_read,
        })
    }
}
