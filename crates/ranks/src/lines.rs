//! Which lines of a rank's stderr the launcher shows: all of rank 0's; of the others errors and warnings with their
//! facts and hints, once each, prefixed with the rank.
//!
//! Often all ranks see one cause. Errors of the others are held for a moment, so that what rank 0 also reports is not
//! shown twice. Buffers are bounded: a rank that writes without end loses lines, not the launcher's memory.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longest line; the rest of a longer one is dropped.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Lines of an error with its facts and hints.
const BLOCK_LINES_MAX: usize = 40;
/// Errors held, and first lines remembered.
const HELD_MAX: usize = 256;
/// Error of ranks that ended because of another one.
const VERDICT: &str = "error[rank-lost]: ";
/// How long an error is held in case another rank reports it too.
const HOLD_TIME: Duration = Duration::from_secs(3);

/// Splits a stream into plain lines.
#[derive(Debug, Default)]
struct Splitter {
    line: Vec<u8>,
}

impl Splitter {
    fn push(&mut self, bytes: &[u8], mut each: impl FnMut(String)) {
        for &byte in bytes {
            match byte {
                b'\n' => each(plain(&std::mem::take(&mut self.line))),
                // The line is being redrawn.
                b'\r' => self.line.clear(),
                _ if self.line.len() < LINE_BYTES_MAX => self.line.push(byte),
                _ => {}
            }
        }
    }
}

/// Returns text without `ESC [ ... letter` and other control characters.
fn plain(bytes: &[u8]) -> String {
    let (text, mut out) = (String::from_utf8_lossy(bytes), String::new());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            chars.by_ref().skip_while(|&c| c == '[').find(char::is_ascii_alphabetic);
        } else if !c.is_control() {
            out.push(c);
        }
    }
    out
}

fn is_error(line: &str) -> bool {
    line.starts_with("error[")
}

fn is_head(line: &str) -> bool {
    is_error(line) || line.starts_with("warning[") || line.starts_with("warning: ")
}

fn belongs_to_a_head(line: &str) -> bool {
    line.starts_with("  ") || line.starts_with("hint: ")
}

/// An error or a warning with its facts and hints.
#[derive(Debug)]
struct Block {
    rank: usize,
    since: Instant,
    lines: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Lines {
    /// Number of the first rank of this host; ranks are indexed from it.
    first: usize,
    splitters: Vec<Splitter>,
    /// The block that a rank's next line may belong to.
    open: Vec<Option<Block>>,
    held: VecDeque<Block>,
    /// First lines that were shown.
    shown: VecDeque<String>,
}

impl Lines {
    pub(crate) fn of_ranks(first: usize, ranks: usize) -> Lines {
        Lines {
            first,
            splitters: (0..ranks).map(|_| Splitter::default()).collect(),
            open: (0..ranks).map(|_| None).collect(),
            held: VecDeque::new(),
            shown: VecDeque::new(),
        }
    }

    /// Takes output of a rank. The caller shows rank 0's bytes unchanged.
    pub(crate) fn push(&mut self, rank: usize, bytes: &[u8], now: Instant) {
        let mut lines = Vec::new();
        self.splitters[rank].push(bytes, |line| lines.push(line));
        for line in lines {
            if self.first + rank == 0 {
                if is_head(&line) {
                    self.remember(line);
                }
            } else if is_head(&line) {
                self.close(rank);
                self.open[rank] = Some(Block { rank, since: now, lines: vec![line] });
            } else if belongs_to_a_head(&line) {
                let open = self.open[rank].iter_mut();
                open.filter(|block| block.lines.len() < BLOCK_LINES_MAX)
                    .for_each(|block| block.lines.push(line.clone()));
            } else {
                self.close(rank);
            }
        }
    }

    /// Returns the lines to show now: warnings, and errors held long enough; all of them if `at_end`.
    pub(crate) fn show(&mut self, now: Instant, at_end: bool) -> Vec<String> {
        for rank in 0..self.open.len() {
            // Its facts and hints are written with it, so a moment later it is complete.
            let is_whole =
                |block: &Block| at_end || now.saturating_duration_since(block.since) >= HOLD_TIME / 10;
            if self.open[rank].as_ref().is_some_and(is_whole) {
                self.close(rank);
            }
        }
        let mut text = Vec::new();
        for block in std::mem::take(&mut self.held) {
            // All ranks print the same verdict. Rank 0 prints it last, because it waits for the others to end.
            let is_verdict = block.lines[0].starts_with(VERDICT);
            let is_due = at_end
                || !is_error(&block.lines[0])
                || !is_verdict && now.saturating_duration_since(block.since) >= HOLD_TIME;
            if !is_due {
                self.held.push_back(block);
                continue;
            }
            if !self.shown.contains(&block.lines[0]) {
                text.extend(
                    block.lines.iter().map(|line| format!("rank {}: {line}", self.first + block.rank)),
                );
                self.remember(block.lines[0].clone());
            }
        }
        text
    }

    fn close(&mut self, rank: usize) {
        if let Some(block) = self.open[rank].take()
            && self.held.len() < HELD_MAX
        {
            self.held.push_back(block);
        }
    }

    fn remember(&mut self, head: String) {
        if self.shown.len() >= HELD_MAX {
            self.shown.pop_front();
        }
        self.shown.push_back(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_warnings_of_the_others_are_shown_once_with_their_rank() {
        let now = Instant::now();
        let mut lines = Lines::of_ranks(0, 3);
        lines.push(1, b"step 1/9 reward 0.5\nwarning[no-score]: no sam", now);
        lines.push(1, b"ple\n  fact\nhint: grade one\nstep 2/9\nnote: x\n", now);
        let warning = ["rank 1: warning[no-score]: no sample", "rank 1:   fact", "rank 1: hint: grade one"];
        assert_eq!(lines.show(now, false), warning);
        lines.push(2, b"warning[no-score]: no sample\nstep 2/9\n", now);
        lines.push(2, b"\x1b[1;31merror[x]\x1b[0m: y\n\x1b[1;36mhint\x1b[0m: z\n", now);
        assert_eq!(lines.show(now, false), [""; 0]);
        assert_eq!(lines.show(now + HOLD_TIME, false), ["rank 2: error[x]: y", "rank 2: hint: z"]);
    }

    #[test]
    fn what_rank_0_says_is_not_said_again() {
        let now = Instant::now();
        let mut lines = Lines::of_ranks(0, 3);
        lines.push(1, b"error[ranks-method]: not yet\nhint: one rank\n", now);
        lines.push(2, b"error[ranks-method]: not yet\nhint: one rank\n", now);
        assert_eq!(lines.show(now, false), [""; 0]);
        lines.push(0, b"step 3/9\r\x1b[2Kerror[ranks-method]: not yet\nhint: one rank\n", now);
        assert_eq!(lines.show(now, true), [""; 0]);
        // Rank 0 may say the verdict ten seconds after the others.
        lines.push(1, b"error[rank-lost]: rank 2 is slow\nhint: y\n", now);
        assert_eq!(lines.show(now + 4 * HOLD_TIME, false), [""; 0]);
        lines.push(0, b"error[rank-lost]: rank 2 is slow\nhint: y\n", now + 4 * HOLD_TIME);
        assert_eq!(lines.show(now + 5 * HOLD_TIME, true), [""; 0]);
        // Without rank 0, the first of the others says it.
        lines.push(1, b"error[rank-lost]: rank 0 is gone\n", now);
        lines.push(2, b"error[rank-lost]: rank 0 is gone\n", now);
        assert_eq!(lines.show(now, true), ["rank 1: error[rank-lost]: rank 0 is gone"]);
        // Where rank 0 is on another host, the first of this one has no voice of its own.
        let mut lines = Lines::of_ranks(2, 2);
        lines.push(0, b"error[x]: y\n", now);
        assert_eq!(lines.show(now, true), ["rank 2: error[x]: y"]);
    }

    #[test]
    fn a_rank_that_writes_without_end_costs_a_bounded_buffer() {
        let now = Instant::now();
        let mut lines = Lines::of_ranks(0, 2);
        lines.push(1, &vec![b'x'; 1 << 20], now);
        lines.push(1, b"\nerror[a]: b\n", now);
        (0..1000).for_each(|_| lines.push(1, b"  fact\n", now));
        assert!(lines.splitters[1].line.len() <= LINE_BYTES_MAX);
        assert_eq!(lines.show(now, true).len(), BLOCK_LINES_MAX);
        (0..1000).for_each(|n| lines.push(1, format!("error[{n}]: x\n").as_bytes(), now));
        assert_eq!(lines.show(now, true).len(), HELD_MAX);
    }
}
