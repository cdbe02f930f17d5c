//! Speculation without weights: the tokens that a response may have next are taken from texts that went on alike,
//! computed in one pass with its last token, and kept as far as they are what the sampler draws.
//!
//! Every row draws with the random numbers of its own position and has the bits that it has alone, so what is drawn
//! does not depend on drafts: they change how many tokens a pass gives and nothing else. What is decided here is
//! therefore about time alone. It is counted in tokens and passes, never in seconds.

mod kinds;
mod rates;
mod texts;

use crate::EngineLimits;
use crate::draft_limits::{DraftLimits, DraftSource};
use kinds::{LEAD, LEVELS};
use rates::Rates;
use texts::{POSITIONS_MAX, Scope, Texts, hash};

/// The drafts of a pass.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    tokens: Vec<u32>,
    /// The probability that each is right, and all before it of its sequence.
    odds: Vec<f32>,
    /// By sample: its first one, and how many it has.
    spans: Vec<(u32, u32)>,
    /// For sorting.
    all_odds: Vec<f32>,
}

/// A response as a drafter sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'k> {
    pub(crate) sample: usize,
    pub(crate) group: usize,
    pub(crate) prompt: &'k [u32],
    pub(crate) ids: &'k [u32],
}

/// The text of a response that runs.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    text: usize,
    /// Number of the text, from which is seen whether another one has taken its place; 0 for none.
    number: u64,
    /// Tokens of the response that are in it.
    known: usize,
    scopes: [Scope; 2],
    /// Drafts that are expected to be right in a pass.
    right: Mean,
}

/// The mean of the last numbers, about as many as `MEAN_OF`.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    of: f32,
    count: u32,
}

const MEAN_OF: u32 = 32;

impl Mean {
    fn add(&mut self, number: f32) {
        self.count = (self.count + 1).min(MEAN_OF);
        self.of += (number - self.of) / self.count as f32;
    }
}

/// Drafts of an engine. Its vectors are allocated once and never grow.
#[derive(Debug)]
pub(crate) struct Drafter {
    limits: DraftLimits,
    texts: Texts,
    rates: Rates,
    /// By sample.
    own: Vec<Own>,
    /// How many times as long as without drafts a pass takes.
    longer: Mean,
    /// Passes since one paid.
    idle: u32,
    /// By group, once its prompt is among the texts.
    prompts: Vec<Option<Scope>>,
    drafts: Drafts,
    /// A sequence's last tokens, and its drafts.
    context: Vec<u32>,
}

/// Guesses for more sequences than `FEW` take the host some time: after `PATIENCE` passes without one that pays, only
/// every `RETRY`-th is tried.
const FEW: usize = 16;
const PATIENCE: u32 = 2 * MEAN_OF;
const RETRY: u32 = 16;

/// Drafts that are right less often are not considered.
const LEAST_ODDS: f32 = 0.02;

/// The scope of all responses.
const ALL: Scope = 0;

impl Drafter {
    pub(crate) fn new(of: DraftLimits, limits: &EngineLimits) -> Drafter {
        Drafter {
            limits: of,
            texts: Texts::new(of.texts, stride(limits)),
            rates: Rates::default(),
            own: vec![Own::default(); limits.samples],
            longer: Mean::default(),
            idle: 0,
            prompts: vec![None; limits.samples],
            drafts: Drafts {
                tokens: Vec::with_capacity(limits.sequences * of.depth),
                odds: Vec::with_capacity(limits.sequences * of.depth),
                spans: vec![(0, 0); limits.samples],
                all_odds: Vec::with_capacity(limits.sequences * of.depth),
            },
            context: Vec::with_capacity(LEAD + of.depth),
        }
    }

    /// Returns the heap bytes of a drafter.
    pub(crate) fn bytes(of: DraftLimits, limits: &EngineLimits) -> u64 {
        let of_sample = size_of::<Own>() + size_of::<Option<Scope>>() + size_of::<(u32, u32)>();
        let others = limits.samples * of_sample + limits.sequences * of.depth * 12 + 4 * (LEAD + of.depth);
        Texts::bytes(of.texts, stride(limits)) + (others + size_of::<Drafter>()) as u64
    }

    /// Begins a request: no response is known. Texts of earlier ones stay.
    pub(crate) fn begin(&mut self) {
        self.own.fill(Own::default());
        self.idle = 0;
        self.prompts.fill(None);
        self.drafts.spans.fill((0, 0));
    }

    /// Drafts at most `depth` tokens of a sequence from now on, and forgets all texts.
    pub(crate) fn limit(&mut self, depth: usize) {
        self.limits.depth = depth;
        self.texts.forget();
        self.rates = Rates::default();
        self.begin();
    }

    /// True if it may draft.
    pub(crate) fn is_on(&self) -> bool {
        self.limits.depth > 0
    }

    /// Takes the tokens that a response has had since, and compares them with what would have been guessed.
    pub(crate) fn learn(&mut self, of: &Known<'_>) {
        let mut own = self.own[of.sample];
        if own.number == 0 || self.texts.number(own.text) != own.number {
            own = self.begin_text(of, own.known);
        }
        for &token in &of.ids[own.known..] {
            let context = self.texts.ids(own.text);
            let context = &context[context.len().saturating_sub(LEAD)..];
            for (level, &(which, tokens)) in LEVELS.iter().enumerate() {
                if tokens <= context.len()
                    && let Some((guess, class)) = self.texts.guess(level, own.scopes[which], context)
                {
                    self.rates.add(class, guess == token);
                }
            }
            self.texts.push(own.text, token);
        }
        own.known = of.ids.len();
        self.own[of.sample] = own;
    }

    /// Begins the text of a response, of which the first `known` tokens were in one that is gone.
    fn begin_text(&mut self, of: &Known<'_>, known: usize) -> Own {
        let prompt = self.prompt_scope(of);
        let scopes = match self.limits.source {
            // A number that no other response has, also of another request.
            DraftSource::Ngram => [hash(prompt, self.texts.begun()), prompt],
            DraftSource::Suffix => [prompt, ALL],
        };
        let is_found = [Some(scopes[0]), Some(ALL).filter(|_| self.limits.source == DraftSource::Suffix)];
        let before = if known == 0 { of.prompt } else { &of.ids[..known] };
        let text = self.texts.open(is_found, &before[before.len().saturating_sub(LEAD)..]);
        Own { text, number: self.texts.number(text), known, scopes, right: self.own[of.sample].right }
    }

    /// Returns the scope of a prompt, which becomes a text if it is new in this request.
    fn prompt_scope(&mut self, of: &Known<'_>) -> Scope {
        if let Some(scope) = self.prompts[of.group] {
            return scope;
        }
        let scope = of.prompt.iter().fold(1, |scope, &id| hash(scope, u64::from(id))).max(1);
        let is_found = match self.limits.source {
            DraftSource::Ngram => [None, Some(scope)],
            DraftSource::Suffix => [Some(scope), None],
        };
        let piece = self.texts.stride() - LEAD;
        for first in (0..of.prompt.len()).step_by(piece) {
            let text = self.texts.open(is_found, &of.prompt[first.saturating_sub(LEAD)..first]);
            let piece = &of.prompt[first..(first + piece).min(of.prompt.len())];
            piece.iter().for_each(|&id| self.texts.push(text, id));
        }
        self.prompts[of.group] = Some(scope);
        scope
    }

    /// Drafts what running sequences, all of whose tokens were learned, may have next: at most `room` tokens of each,
    /// none of which is beyond the vocabulary. True if a pass with them is expected to save time. `padded`: the rows
    /// that a pass of some rows is computed with. `refills`: another sequence begins where one ends.
    ///
    /// A pass with drafts must give more tokens in its time, and, unless other sequences wait, do so for each sequence
    /// on the average of the last passes: the last one to end decides how long all take.
    pub(crate) fn draft(
        &mut self,
        running: &[usize],
        room: impl Fn(usize) -> usize,
        vocab: u32,
        padded: impl Fn(usize) -> usize,
        refills: bool,
    ) -> bool {
        let (n, drafts) = (running.len(), &mut self.drafts);
        drafts.tokens.clear();
        drafts.odds.clear();
        drafts.spans.fill((0, 0));
        let left = self.limits.rows.saturating_sub(n);
        self.idle += 1;
        let is_due = n <= FEW || self.idle <= PATIENCE || self.idle.is_multiple_of(RETRY);
        if left == 0 || n == 0 || !is_due {
            return false;
        }
        for &s in running {
            let own = &self.own[s];
            let (first, text) = (drafts.tokens.len(), self.texts.ids(own.text));
            self.context.clear();
            self.context.extend_from_slice(&text[text.len().saturating_sub(LEAD)..]);
            let mut odds = 1.0;
            while drafts.tokens.len() - first < room(s).min(self.limits.depth) {
                let Some((token, rate)) = best(&self.texts, &self.rates, own.scopes, &self.context) else {
                    break;
                };
                odds *= rate;
                if odds < LEAST_ODDS || token >= vocab {
                    break;
                }
                drafts.tokens.push(token);
                drafts.odds.push(odds);
                self.context.push(token);
            }
            drafts.spans[s] = (first as u32, (drafts.tokens.len() - first) as u32);
        }
        let [without, with] = self.limits.costs;
        let cost = |drafts| if drafts > 0 { with.of(padded(n + drafts)) } else { without.of(padded(n)) };
        let kept = drafts.keep(running, left, cost);
        self.longer.add(cost(kept) / cost(0));
        let (mut least, mut sum) = (f32::INFINITY, 0.0);
        for &s in running {
            let right = &mut self.own[s].right;
            right.add(self.drafts.odds(s).iter().sum());
            (least, sum) = (least.min(right.of), sum + right.of);
        }
        let tokens = 1.0 + if refills { sum / n as f32 } else { least };
        let pays = kept > 0 && tokens >= self.longer.of;
        self.idle = if pays { 0 } else { self.idle };
        pays
    }

    /// Returns the last drafts.
    pub(crate) fn drafts(&self) -> &Drafts {
        &self.drafts
    }
}

impl Drafts {
    /// Returns the drafts of a sample.
    pub(crate) fn of(&self, sample: usize) -> &[u32] {
        let (first, count) = self.spans[sample];
        &self.tokens[first as usize..][..count as usize]
    }

    fn odds(&self, sample: usize) -> &[f32] {
        let (first, count) = self.spans[sample];
        &self.odds[first as usize..][..count as usize]
    }

    /// Keeps those drafts, likeliest first and at most `most`, with which the most tokens are expected in a unit of
    /// time; `cost`: the time of a pass with a number of drafts. Returns how many are kept.
    fn keep(&mut self, running: &[usize], most: usize, cost: impl Fn(usize) -> f32) -> usize {
        self.all_odds.clear();
        self.all_odds.extend_from_slice(&self.odds);
        self.all_odds.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut tokens = running.len() as f32;
        let (mut best, mut kept) = (tokens / cost(0), 0);
        for (drafts, odds) in (1..=most).zip(&self.all_odds) {
            tokens += odds;
            let rate = tokens / cost(drafts);
            if rate > best {
                (best, kept) = (rate, drafts);
            }
        }
        let least = if kept > 0 { self.all_odds[kept - 1] } else { f32::INFINITY };
        let mut equal = self.all_odds[..kept].iter().rev().take_while(|odds| **odds == least).count();
        for &s in running {
            // They fall, so the first ones stay.
            let stays = |odds: &&f32| {
                let stays = **odds > least || (**odds == least && equal > 0);
                equal -= usize::from(stays && **odds == least);
                stays
            };
            self.spans[s].1 = self.odds(s).iter().take_while(stays).count() as u32;
        }
        kept
    }
}

/// Returns the guess that is likeliest right, of equals that of the longest context.
fn best(texts: &Texts, rates: &Rates, scopes: [Scope; 2], context: &[u32]) -> Option<(u32, f32)> {
    let mut best = None;
    for (level, &(which, tokens)) in LEVELS.iter().enumerate() {
        if tokens <= context.len()
            && let Some((token, class)) = texts.guess(level, scopes[which], context)
        {
            let rate = rates.of(class);
            if best.is_none_or(|(_, other)| rate > other) {
                best = Some((token, rate));
            }
        }
    }
    best
}

/// Returns the tokens of a text: those of a response, after some of its prompt.
fn stride(limits: &EngineLimits) -> usize {
    LEAD + limits.new_tokens.max(limits.prompt_tokens.min(PIECE))
}

/// Tokens of a prompt that are a text, where responses are shorter.
const PIECE: usize = 256;

impl DraftLimits {
    /// Returns the texts of `responses` to `prompts` of the longest, or as many as can be numbered by their tokens.
    pub fn texts_of(prompts: usize, responses: usize, limits: &EngineLimits) -> usize {
        let texts = responses + prompts * limits.prompt_tokens.div_ceil(stride(limits) - LEAD);
        texts.min(POSITIONS_MAX / stride(limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft_limits::PassCosts;
    use plimsoll_arch::Caches;

    fn drafter(source: DraftSource, depth: usize, rows: usize) -> Drafter {
        drafter_of(source, depth, rows, (4, 50))
    }

    fn drafter_of(
        source: DraftSource,
        depth: usize,
        rows: usize,
        (samples, new_tokens): (usize, usize),
    ) -> Drafter {
        let of = DraftLimits { source, depth, rows, texts: 6 * samples, costs: [PassCosts::FLAT; 2] };
        let limits = EngineLimits {
            sequences: samples,
            rows: 64,
            samples,
            prompt_tokens: 40,
            new_tokens,
            ahead: false,
            listed: 0,
            own: plimsoll_model::OwnLogits::NONE,
            caches: Caches::paged(4),
            drafts: Some(of),
        };
        Drafter::new(of, &limits)
    }

    fn known<'k>(sample: usize, prompt: &'k [u32], ids: &'k [u32]) -> Known<'k> {
        Known { sample, group: sample / 2, prompt, ids }
    }

    /// A text that repeats itself is drafted from itself, one that another response had from that one, by suffixes
    /// alone; and what is in the prompt by both.
    #[test]
    fn drafts_are_of_the_texts_that_their_source_has() {
        let prompt: Vec<u32> = (100..140).collect();
        let first: Vec<u32> = (0..40).map(|i| i % 8).collect();
        for source in [DraftSource::Ngram, DraftSource::Suffix] {
            let mut drafter = drafter(source, 6, 16);
            drafter.learn(&known(0, &prompt, &first));
            drafter.learn(&known(1, &prompt, &first[..20]));
            assert!(drafter.draft(&[0, 1], |s| 6 - s, 200, |rows| rows, false));
            assert_eq!(drafter.drafts().of(0), [0, 1, 2, 3, 4, 5]);
            assert_eq!(drafter.drafts().of(1), [4, 5, 6, 7, 0], "as many as there is room for");
            drafter.begin();
            drafter.learn(&known(3, &prompt, &first[..4]));
            drafter.draft(&[3], |_| 2, 200, |rows| rows, false);
            let of_earlier = if source == DraftSource::Suffix { &[4, 5][..] } else { &[] };
            assert_eq!(drafter.drafts().of(3), of_earlier, "a request before");
            drafter.begin();
            let second = [17, 30, 31, 32, 33, 34, 35, 36];
            drafter.learn(&known(0, &prompt, &second));
            drafter.learn(&known(1, &prompt, &second[..4]));
            drafter.draft(&[0, 1], |_| 3, 200, |rows| rows, false);
            let of_another = if source == DraftSource::Suffix { &[33, 34, 35][..] } else { &[] };
            assert_eq!((drafter.drafts().of(0), drafter.drafts().of(1)), (&[][..], of_another));
            let copied = [40, 120, 121, 122];
            drafter.learn(&known(2, &prompt, &copied));
            drafter.draft(&[2], |_| 2, 200, |rows| rows, false);
            assert_eq!(drafter.drafts().of(2), [123, 124]);
            drafter.draft(&[2], |_| 2, 124, |rows| rows, false);
            assert_eq!(drafter.drafts().of(2), [123], "no token beyond the vocabulary");
        }
    }

    #[test]
    fn more_rows_than_a_pass_has_are_the_likeliest() {
        let prompt: Vec<u32> = (100..140).collect();
        let ids: Vec<u32> = (0..40).map(|i| i % 8).collect();
        let mut drafter = drafter(DraftSource::Suffix, 8, 9);
        for s in 0..4 {
            drafter.learn(&known(s, &prompt, &ids[..20 + s]));
        }
        let draft =
            |drafter: &mut Drafter, running: &[usize]| drafter.draft(running, |_| 8, 200, |rows| rows, false);
        assert!(draft(&mut drafter, &[0, 1, 2, 3]));
        let all: usize = (0..4).map(|s| drafter.drafts().of(s).len()).sum();
        assert_eq!(all, 5);
        assert!(!draft(&mut drafter, &[0, 1, 2, 3].repeat(3)), "no row is left");
        // Where a row costs as much as the first one, no draft pays.
        drafter.limits.costs = [PassCosts([0, 1, 2, 3, 4, 5, 6, 7, 8].map(|bits| 1000 << bits)); 2];
        assert!(!draft(&mut drafter, &[0, 1]));
        assert!(drafter.drafts().of(0).is_empty());
    }

    /// The last sequence to end decides, so one that is never right keeps all from drafting, unless others wait.
    #[test]
    fn the_sequence_that_has_fewest_drafts_decides() {
        let prompt: Vec<u32> = (100..140).collect();
        let (right, wrong): (Vec<u32>, Vec<u32>) = ((0..40).map(|i| i % 8).collect(), (200..240).collect());
        let pays = |refills: bool| {
            let mut drafter = drafter(DraftSource::Ngram, 8, 32);
            drafter.limits.costs[1] = PassCosts([1200; 9]);
            (1..30)
                .filter(|&len| {
                    drafter.learn(&known(0, &prompt, &right[..len]));
                    drafter.learn(&known(1, &prompt, &wrong[..len]));
                    drafter.draft(&[0, 1], |_| 8, 300, |rows| rows, refills)
                })
                .count()
        };
        assert!(pays(true) > 15);
        assert!(pays(false) < 3);
    }

    #[test]
    fn what_has_not_paid_for_long_is_tried_now_and_then() {
        let ids: Vec<u32> = (0..200).map(|i| if i < 120 { 1000 + i } else { i % 4 }).collect();
        let all: Vec<usize> = (0..=FEW).collect();
        let first_that_pays = |running: &[usize]| {
            let mut drafter = drafter_of(DraftSource::Ngram, 1, 64, (FEW + 1, 200));
            let mut pays = |len: usize| {
                running.iter().for_each(|s| drafter.learn(&known(*s, &[1, 2, 3], &ids[..len])));
                drafter.draft(running, |_| 1, u32::MAX, |rows| rows, false)
            };
            assert_eq!((1..120).filter(|len| pays(*len)).count(), 0);
            (120..200).find(|len| pays(*len)).expect("it repeats itself")
        };
        let soonest = first_that_pays(&all[1..]);
        let first = first_that_pays(&all);
        assert!(
            first.is_multiple_of(RETRY as usize) && first - soonest < RETRY as usize,
            "{first} {soonest}"
        );
    }

    #[test]
    fn costs_between_powers_of_two_are_between_theirs() {
        let costs = PassCosts([1000, 1000, 1000, 1500, 2500, 4000, 8000, 16_000, 32_000]);
        let of = [1, 3, 4, 6, 8, 12, 16, 256, 384].map(|rows| costs.of(rows));
        assert_eq!(of, [1000.0, 1000.0, 1000.0, 1250.0, 1500.0, 2000.0, 2500.0, 32_000.0, 48_000.0]);
    }

    #[test]
    fn what_is_never_right_is_no_longer_drafted() {
        let prompt = [1, 2, 3];
        let mut drafter = drafter(DraftSource::Ngram, 4, 16);
        drafter.limits.costs = [PassCosts([0, 1, 2, 3, 4, 5, 6, 7, 8].map(|bits| 800 + (200 << bits))); 2];
        // Every other token is new.
        let ids: Vec<u32> = (0..48).map(|i| if i % 2 == 0 { 7 } else { 1000 + i }).collect();
        let mut drafted = 0;
        for round in 0..40 {
            drafter.begin();
            let ids: Vec<u32> = ids.iter().map(|id| if *id == 7 { 7 } else { id + 100 * round }).collect();
            for len in 1..48 {
                drafter.learn(&known(0, &prompt, &ids[..len]));
                drafter.draft(&[0], |_| 4, u32::MAX, |rows| rows, false);
                drafted += drafter.drafts().of(0).len();
            }
        }
        assert!(drafted < 40, "{drafted}");
    }
}
