//! Lengths of responses: of a distribution, or those that an earlier run drew.

use plimsoll_base::rng::{Stream, philox};
use plimsoll_base::{Error, Result, open_regular};
use plimsoll_rollout::DrawnEnds;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest line of a file of samples that is read; longer ones are left out.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Most files of samples; a run keeps about 21.
const FILES_MAX: usize = 1024;

/// Lengths of responses in tokens, by group.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseLengths {
    Drawn(DrawnEnds),
    Recorded(RecordedLengths),
}

/// Lengths in the samples that a run kept.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedLengths {
    dir: PathBuf,
    /// At least one, each of at least one response.
    groups: Vec<Vec<u32>>,
    /// Responses that the run's `max_new_tokens` cut.
    cut: usize,
}

/// The fields of a line of samples that matter here.
#[derive(Deserialize)]
struct Line {
    prompt_index: u64,
    response_tokens: u32,
    finish: String,
}

impl ResponseLengths {
    /// Reads `lognormal:MEDIAN,SIGMA` or the directory of a run.
    ///
    /// Errors: `bad-usage` for what is neither; `run-dir-unreadable` for a directory without samples.
    pub fn of(text: &str) -> Result<ResponseLengths> {
        if text.contains(':') && !Path::new(text).exists() {
            let drawn = text.parse().map(ResponseLengths::Drawn);
            return drawn
                .map_err(|why: String| Error::usage("bad-usage", format!("--lengths {text}: {why}")));
        }
        RecordedLengths::read(Path::new(text)).map(ResponseLengths::Recorded)
    }

    /// Returns the length of a response of a group, at least 1; it may be beyond what a run allows.
    pub(super) fn length(&self, group: u64, of_group: usize, size: usize) -> u64 {
        match self {
            ResponseLengths::Drawn(ends) => ends.length(group * size as u64 + of_group as u64) as u64,
            ResponseLengths::Recorded(recorded) => recorded.length(group, of_group, size),
        }
    }

    /// Returns what they are, for people.
    pub(super) fn words(&self) -> String {
        match self {
            ResponseLengths::Drawn(DrawnEnds { median, sigma }) => {
                format!("lognormal, a median of {median} tokens, {sigma} the deviation of the logarithm")
            }
            ResponseLengths::Recorded(RecordedLengths { dir, groups, cut }) => {
                let count: usize = groups.iter().map(Vec::len).sum();
                let cut = match cut {
                    0 => String::new(),
                    cut => format!(", {cut} of them cut at their run's max_new_tokens"),
                };
                format!("{count} responses to {} prompts that {} kept{cut}", groups.len(), dir.display())
            }
        }
    }
}

impl RecordedLengths {
    /// Reads `samples/step-*.jsonl` of a run.
    fn read(dir: &Path) -> Result<RecordedLengths> {
        let folder = dir.join("samples");
        let unreadable = |err: &std::io::Error| {
            Error::io("run-dir-unreadable", &folder, err)
                .hint("give a run directory that `plimsoll train` made, or lognormal:MEDIAN,SIGMA")
        };
        let entries = std::fs::read_dir(&folder).map_err(|err| unreadable(&err))?;
        let names = entries.flatten().map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("step-") && name.ends_with(".jsonl")
        });
        let mut files: Vec<PathBuf> = names.collect();
        files.sort_unstable();
        files.truncate(FILES_MAX);
        let (mut groups, mut cut) = (Vec::new(), 0);
        for path in &files {
            let mut of_step: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for line in lines(path).map_err(|err| unreadable(&err))? {
                cut += usize::from(line.finish == "length");
                of_step.entry(line.prompt_index).or_default().push(line.response_tokens.max(1));
            }
            groups.extend(of_step.into_values());
        }
        if groups.is_empty() {
            let message = format!("{}: no responses to prompts are kept there", folder.display());
            return Err(Error::new("run-dir-unreadable", message)
                .hint("give a run that sampled, or lognormal:MEDIAN,SIGMA"));
        }
        Ok(RecordedLengths { dir: dir.to_path_buf(), groups, cut })
    }

    /// Draws a group, and of groups of another size its responses one by one.
    fn length(&self, group: u64, of_group: usize, size: usize) -> u64 {
        let below =
            |a, b, n: usize| ((u64::from(philox(0, Stream::Bench, a, b)[0]) * n as u64) >> 32) as usize;
        let lengths = &self.groups[below(group, 2, self.groups.len())];
        let index = if lengths.len() == size {
            of_group
        } else {
            below(group * size as u64 + of_group as u64, 3, lengths.len())
        };
        u64::from(lengths[index])
    }
}

/// Returns the samples of a file; lines of other forms are left out.
fn lines(path: &Path) -> std::io::Result<Vec<Line>> {
    let mut reader = BufReader::new(open_regular(path)?);
    let (mut found, mut bytes) = (Vec::new(), Vec::new());
    loop {
        bytes.clear();
        if Read::by_ref(&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(found);
        }
        found.extend(serde_json::from_slice::<Line>(&bytes).ok());
    }
}
