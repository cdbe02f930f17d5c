//! Learns which ranks have a line in any of the logs, from the prefix that a log gives its lines: a rank that wrote
//! nothing is silent, and one that only does not complain is not.

use super::text::regex;
use memchr::{memchr_iter, memmem};
use regex::Regex;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Larger than any group; a larger number is not a rank.
const RANKS_MAX: u64 = 1 << 17;
/// Lines of a log from which its prefix is learnt.
const LEARN_LINES: usize = 400;
/// Lines with a number in one place that make it a prefix, and the least share of the lines that have it.
const LEARN_MIN: usize = 8;
const LEARN_SHARE: usize = 2;
/// Bytes of the words that name a number a rank.
const WORD_MAX: usize = 12;
/// Characters before the number.
const BEFORE_MAX: usize = 48;

/// A file that has the output of one rank.
static FILE: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?i)(?:^|[/_.-])(?:local_?)?rank[_-]?(\d{1,6})(?:[/_.-]|$)|attempt_\d+/(\d{1,6})/std(?:err|out)")
});

/// The ranks that wrote something.
#[derive(Clone, Debug, Default)]
pub struct Wrote {
    /// A bit for each rank.
    words: Vec<u64>,
}

impl Wrote {
    pub fn has(&self, rank: u64) -> bool {
        self.words.get((rank / 64) as usize).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    pub fn add(&mut self, rank: u64) {
        if rank < RANKS_MAX {
            let word = (rank / 64) as usize;
            if word >= self.words.len() {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= 1 << (rank % 64);
        }
    }

    /// Adds the rank whose output a file has, by its name.
    pub fn add_file(&mut self, name: &str) {
        let found = FILE.captures(name);
        let rank = found.and_then(|found| found.get(1).or(found.get(2))?.as_str().parse().ok());
        rank.into_iter().for_each(|rank| self.add(rank));
    }

    /// Adds the ranks of whole lines.
    pub fn read(&mut self, form: &RankForm, lines: &[u8]) {
        if !form.before.is_empty() {
            for at in memmem::find_iter(lines, &form.before) {
                number(&lines[at + form.before.len()..], &form.after)
                    .into_iter()
                    .for_each(|rank| self.add(rank));
            }
            return;
        }
        let starts = std::iter::once(0).chain(memchr_iter(b'\n', lines).map(|at| at + 1));
        for at in starts {
            let line = &lines[at..];
            let spaces = line.iter().take(BEFORE_MAX).position(|byte| *byte != b' ').unwrap_or(0);
            number(&line[spaces..], &form.after).into_iter().for_each(|rank| self.add(rank));
        }
    }
}

/// How a log writes a line's rank: what is before and after the number, which begins the line if nothing is before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankForm {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl RankForm {
    /// Learns the form from the first lines of a log: words that name a rank in many lines, with several numbers, or a
    /// number that begins most lines.
    pub fn learn(lines: &[u8]) -> Vec<RankForm> {
        let lines: Vec<&[u8]> =
            lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(LEARN_LINES).collect();
        let mut forms: BTreeMap<Words, Seen> = BTreeMap::new();
        for line in &lines {
            for (form, rank) in numbers(line) {
                let (count, ranks) = forms.entry(form).or_default();
                *count += 1;
                if ranks.len() < 2 && !ranks.contains(&rank) {
                    ranks.push(rank);
                }
            }
        }
        let is_prefix = |((before, _, _), (count, ranks)): &(&Words, &Seen)| {
            let names = is_named(before);
            names && *count > 0
                || *count >= LEARN_MIN && *count * LEARN_SHARE >= lines.len() && ranks.len() > 1
        };
        let best = |at_begin: bool| {
            let own = forms.iter().filter(is_prefix).filter(|((_, _, own), _)| *own == at_begin);
            let ((before, after, _), _) = own.max_by_key(|(_, (count, _))| *count)?;
            Some(RankForm { before: before.clone(), after: after.clone() })
        };
        [best(false), best(true)].into_iter().flatten().collect()
    }
}

/// Returns true for words that name a rank.
fn is_named(before: &[u8]) -> bool {
    let lower = before.to_ascii_lowercase();
    [&b"rank"[..], b"default"].iter().any(|name| memmem::find(&lower, name).is_some())
}

/// The parts of a form: the words before the number and after it, and whether they name a rank.
type Words = (Vec<u8>, Vec<u8>, bool);
/// How many lines have a form, and the first two ranks in them.
type Seen = (usize, Vec<u64>);
/// A form as its parts, and the rank that a line has in it.
type Numbered = (Words, u64);

/// Returns what may be the rank of a line: numbers with what is around them.
fn numbers(line: &[u8]) -> Vec<Numbered> {
    let line = &line[..line.len().min(2 * BEFORE_MAX)];
    let mut found = Vec::new();
    let mut at = 0;
    while at < line.len() && found.len() < 8 {
        let is_begin = line[at].is_ascii_digit() && (at == 0 || !line[at - 1].is_ascii_digit());
        if !is_begin {
            at += 1;
            continue;
        }
        let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = at + digits;
        let from = word_before(line, at);
        let after = line.get(end).copied();
        let is_closed = matches!(after, Some(b']' | b':' | b')' | b',' | b'|'));
        if let Ok(rank) = str::from_utf8(&line[at..end]).unwrap_or("x").parse::<u64>()
            && is_closed
            && rank < RANKS_MAX
        {
            let at_begin = line[..at].iter().all(|byte| *byte == b' ');
            let before = from.map_or(Vec::new(), |from| line[from..at].to_vec());
            if from.is_some() || at_begin && digits <= 4 {
                found.push(((before, after.into_iter().collect(), at_begin), rank));
            }
        }
        at = end;
    }
    found
}

/// Returns where the words before a number begin that name it a rank, with their bracket.
fn word_before(line: &[u8], at: usize) -> Option<usize> {
    let floor = at.saturating_sub(WORD_MAX);
    let lower = line[floor..at].to_ascii_lowercase();
    let names: [&[u8]; 2] = [b"rank", b"default"];
    let (start, length) = names.iter().find_map(|name| Some((memmem::rfind(&lower, name)?, name.len())))?;
    let is_near = lower[start + length..].iter().all(|byte| matches!(byte, b' ' | b':' | b'=' | b'_'));
    let bracket = start.checked_sub(1).filter(|before| matches!(lower[*before], b'[' | b'('));
    is_near.then_some(floor + bracket.unwrap_or(start))
}

/// Returns the number that begins `bytes`, if `after` follows it.
fn number(bytes: &[u8], after: &[u8]) -> Option<u64> {
    let digits = bytes.iter().take(7).take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0 && bytes[digits..].starts_with(after)).then_some(())?;
    str::from_utf8(&bytes[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(log: &str) -> Vec<u64> {
        let mut wrote = Wrote::default();
        RankForm::learn(log.as_bytes()).iter().for_each(|form| wrote.read(form, log.as_bytes()));
        (0..2000).filter(|rank| wrote.has(*rank)).collect()
    }

    #[test]
    fn the_prefix_is_that_of_the_log() {
        let each = |line: fn(u64) -> String| (0..20).map(|n| line(n % 3 + 1)).collect::<String>();
        assert_eq!(ranks(&each(|rank| format!("[rank{rank}]: step loss 0.5\n"))), [1, 2, 3]);
        assert_eq!(ranks(&each(|rank| format!("{rank}: loading\n"))), [1, 2, 3]);
        assert_eq!(ranks(&each(|rank| format!(" {rank}: loading\n"))), [1, 2, 3]);
        assert_eq!(
            ranks(&each(|rank| format!("2026-03-01 10:11:12 [INFO] [Rank {rank}] loading\n"))),
            [1, 2, 3]
        );
        assert_eq!(ranks(&each(|rank| format!("[1,mpirank:{rank},algo-1]<stderr>:x\n"))), [1, 2, 3]);
        assert_eq!(ranks(&each(|rank| format!("(Worker_TP{rank} pid=7) x\n"))), [0; 0]);
        assert_eq!(ranks(&each(|rank| format!("loss {rank}: 3\n"))), [0; 0]);
        assert_eq!(ranks("1: x\nloading\nloading\n"), [0; 0]);
    }

    #[test]
    fn a_file_has_the_output_of_one_rank() {
        for (name, rank) in
            [("logs/rank_3.log", 3), ("run/rank-12/out.txt", 12), ("t/attempt_0/5/stderr.log", 5)]
        {
            let mut wrote = Wrote::default();
            wrote.add_file(name);
            assert!(wrote.has(rank), "{name}");
        }
        let mut wrote = Wrote::default();
        wrote.add_file("crank7.log");
        assert!((0..99).all(|rank| !wrote.has(rank)));
    }
}
