//! Masks that responses of a grammar share: of two places in a text, those from which a lexer takes the same bytes, as
//! far as a token reaches, have the same mask. `[a-z]{2000}` has few masks, though its lexer has 2,000 states.
//!
//! Only places where no token can go beyond its lexeme are taken: what follows a lexeme is known to the parser alone.

use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use plimsoll_base::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toktrie::{SimpleVob, TokTrie};

/// Most masks that are kept for a grammar. Counts down to their last token's length need one for each byte of it.
const KEPT_MAX: usize = 256;
/// Most states that are as many bytes away from a place. More are those of a grammar whose masks differ anyway.
const WIDTH_MAX: usize = 4;
/// Most ranges of bytes that a state tells apart.
const RANGES_MAX: usize = 32;
/// Most states of a lane that were looked at.
const STATES_MAX: usize = 4_000;

/// Returns the bytes of the masks that are kept for a grammar.
pub(crate) fn kept_bytes(vocab: u32) -> Bytes {
    Bytes(KEPT_MAX as u64 * u64::from(vocab.div_ceil(32) * 4))
}

/// Stands for the bytes that may follow a place.
type Key = [u64; 2];
type State = llguidance::derivre::StateID;
/// The bytes that lead from a state to others, by the first of each range.
type Ranges = Box<[(u8, State)]>;

/// The latest masks of a grammar, by what may follow.
#[derive(Default)]
pub(crate) struct KeptMasks(Mutex<Latest>);

#[derive(Default)]
struct Latest {
    masks: HashMap<Key, Arc<SimpleVob>>,
    /// Oldest first.
    order: VecDeque<Key>,
}

impl KeptMasks {
    fn get(&self, key: &Key) -> Option<Arc<SimpleVob>> {
        lock(&self.0).masks.get(key).cloned()
    }

    fn keep(&self, key: Key, mask: &SimpleVob) {
        let Latest { masks, order } = &mut *lock(&self.0);
        if masks.insert(key, Arc::new(mask.clone())).is_none() {
            order.push_back(key);
        }
        if order.len() > KEPT_MAX {
            order.pop_front().map(|oldest| masks.remove(&oldest));
        }
    }
}

/// What a lane knows of its lexer, whose states have other numbers in other lanes.
#[derive(Default)]
struct Known {
    /// None where there are many, or where a token may go on after its lexeme.
    next: HashMap<State, Option<Ranges>>,
    keys: HashMap<State, Option<Key>>,
}

/// Computes the masks of a lane, or takes those that are kept.
pub(crate) struct LaneMasks {
    plain: Arc<SlicedBiasComputer>,
    kept: Arc<KeptMasks>,
    known: Mutex<Known>,
    /// True if nothing follows the grammar's lexeme.
    ends_at_lexeme: bool,
}

impl LaneMasks {
    pub(crate) fn new(
        plain: Arc<SlicedBiasComputer>,
        kept: &Arc<KeptMasks>,
        ends_at_lexeme: bool,
    ) -> LaneMasks {
        LaneMasks { plain, kept: kept.clone(), known: Mutex::default(), ends_at_lexeme }
    }

    /// Returns what the mask of the present place follows from, if the lexer decides it.
    fn key(&self, of: &mut ParserRecognizer<'_>) -> Option<Key> {
        let state = of.lexer_state();
        let mut known = lock(&self.known);
        if let Some(key) = known.keys.get(&state) {
            return *key;
        }
        if known.keys.len() >= STATES_MAX {
            return None;
        }
        let key = self.key_from(&mut known, of, state);
        known.keys.insert(state, key);
        key
    }

    /// Hashes what leads from a state to which others, for as many bytes as the longest token has.
    fn key_from(&self, known: &mut Known, of: &mut ParserRecognizer<'_>, state: State) -> Option<Key> {
        let depth = self.trie().max_token_len();
        let mut levels = vec![vec![state]];
        for level in 0..depth {
            let mut next: Vec<State> = Vec::with_capacity(WIDTH_MAX);
            for &state in &levels[level] {
                for &(_, to) in self.ranges(known, of, state)? {
                    if !to.is_dead() && !next.contains(&to) {
                        next.push(to);
                    }
                }
            }
            if next.len() > WIDTH_MAX {
                return None;
            }
            levels.push(next);
        }
        let mut after: Vec<(State, Key)> = levels.pop()?.into_iter().map(|state| (state, ALIVE)).collect();
        for level in levels.iter().rev() {
            let key = |state: &State| {
                let ranges = known.next.get(state).and_then(Option::as_ref).expect("it was looked at");
                let of = |to: &State| after.iter().find(|(at, _)| at == to).map_or(DEAD, |(_, key)| *key);
                let key = ranges
                    .iter()
                    .fold(ALIVE, |key, (first, to)| add(add(key, [u64::from(*first); 2]), of(to)));
                (*state, key)
            };
            after = level.iter().map(key).collect();
        }
        after.first().map(|(_, key)| *key)
    }

    /// Returns the bytes that lead from a state to others, or none if a token may go on after the lexeme's end.
    fn ranges<'k>(
        &self,
        known: &'k mut Known,
        of: &mut ParserRecognizer<'_>,
        state: State,
    ) -> Option<&'k [(u8, State)]> {
        if known.next.len() >= STATES_MAX && !known.next.contains_key(&state) {
            return None;
        }
        let ends = self.ends_at_lexeme;
        known.next.entry(state).or_insert_with(|| ranges_of(of, state, ends)).as_deref()
    }
}

impl BiasComputer for LaneMasks {
    fn compute_bias(&self, of: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let key = if start.is_empty() { self.key(of) } else { None };
        if let Some(mask) = key.and_then(|key| self.kept.get(&key)) {
            return SimpleVob::clone(&mask);
        }
        let state = of.lexer_state();
        let mask = self.plain.compute_bias(of, start);
        if let Some(key) = key
            && goes_on(of, state)
        {
            self.kept.keep(key, &mask);
        }
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.plain.trie()
    }
}

/// Follows a state's bytes. None if there are many ranges, or if a lexeme may end and `ends_at_lexeme` is false.
fn ranges_of(of: &mut ParserRecognizer<'_>, state: State, ends_at_lexeme: bool) -> Option<Ranges> {
    if state.has_lowest_match() {
        // The lexeme ends here, and no byte follows.
        return ends_at_lexeme.then(|| [(0, State::DEAD)].into());
    }
    let lexer = of.lexer_mut();
    if !ends_at_lexeme && !lexer.try_lexeme_end(state).is_error() {
        return None;
    }
    let mut ranges: Vec<(u8, State)> = Vec::new();
    for byte in 0..=u8::MAX {
        let to = lexer.transition_start_state(state, Some(byte), &None);
        if ranges.last().is_none_or(|(_, last)| *last != to) {
            ranges.push((byte, to));
        }
        if ranges.len() > RANGES_MAX {
            return None;
        }
    }
    Some(ranges.into())
}

/// True if some byte leads on from a state: none does once the lexer has reached its limits, and its masks are wrong.
fn goes_on(of: &mut ParserRecognizer<'_>, state: State) -> bool {
    let lexer = of.lexer_mut();
    (0..=u8::MAX).any(|byte| !lexer.transition_start_state(state, Some(byte), &None).is_dead())
}

const DEAD: Key = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
const ALIVE: Key = [0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];

/// Adds two numbers to a hash of two, each of which mixes its own.
fn add([a, b]: Key, [x, y]: Key) -> Key {
    let mix = |h: u64, x: u64, by: u64| {
        let h = (h ^ x).wrapping_mul(by);
        (h ^ h >> 29).rotate_left(31)
    };
    [mix(a, x, 0xff51_afd7_ed55_8ccd), mix(b, y, 0xc4ce_b9fe_1a85_ec53)]
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResponseForm;
    use crate::compiled::limits;
    use llguidance::{Matcher, ParserFactory};
    use plimsoll_base::rng::{Stream, philox};
    use serde_json::json;
    use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo};

    const EOS: u32 = 256;

    /// All bytes, an end, and tokens of up to nine characters of a few.
    fn factory() -> ParserFactory {
        let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        words.push(b"\xffend".to_vec());
        let of: Vec<char> = "abcd01 \"{}:,[]é".chars().collect();
        for i in 0..1200u64 {
            let r = philox(1, Stream::Bench, i, 0);
            let length = 2 + r[0] as usize % 8;
            let at = |j: usize| philox(1, Stream::Bench, i, 1 + j as u64)[0] as usize;
            // Most are of letters alone.
            let most = if r[1].is_multiple_of(3) { of.len() } else { 4 };
            words.push((0..length).map(|j| of[at(j) % most]).collect::<String>().into_bytes());
        }
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, EOS), &words).with_eos_tokens(&[EOS]);
        let env: toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).unwrap();
        factory.quiet();
        *factory.limits_mut() = limits();
        factory
    }

    /// Draws texts of a form, and compares all masks with those of the library. Returns how many, and those kept.
    fn compare(factory: &ParserFactory, form: &ResponseForm) -> (usize, usize) {
        let parser = factory.create_parser(form.grammar().unwrap()).unwrap();
        let kept = Arc::<KeptMasks>::default();
        let lanes: Vec<Matcher> = (0..2)
            .map(|_| {
                let mut parser = parser.deep_clone();
                parser.bias_computer =
                    Arc::new(LaneMasks::new(factory.slicer(), &kept, form.is_expression()));
                Matcher::new(Ok(parser))
            })
            .collect();
        let plain = Matcher::new(Ok(parser.deep_clone()));
        let mut masks = 0;
        for seed in 0..6 {
            let (mut mine, mut theirs) = (lanes[seed % 2].clone(), plain.clone());
            for position in 0..120 {
                let (a, b) = (mine.compute_mask_or_eos().unwrap(), theirs.compute_mask_or_eos().unwrap());
                assert_eq!(a.to_list(), b.to_list(), "{form:?}, response {seed}, token {position}");
                masks += 1;
                let allowed = a.to_list();
                let r = philox(7, Stream::Sampler, seed as u64, position);
                let token = allowed[r[0] as usize % allowed.len()];
                if token == EOS {
                    break;
                }
                mine.consume_token(token).unwrap();
                theirs.consume_token(token).unwrap();
            }
        }
        (masks, lock(&kept.0).order.len())
    }

    #[test]
    fn masks_are_those_of_the_library() {
        let factory = factory();
        for regex in [
            "[a-d ]{300}",
            "[a-d ]{0,40}",
            "([a-d]{3}-?){20}",
            "(ab|cd|a[0-1]{2,30}){4}",
            "[a-c]*d[01]{7}",
            "a{3}b{9}|[01]{12}",
            ".{0,50}",
            "(é|a){30}",
            "[^a]{20}",
            "abcd",
        ] {
            compare(&factory, &ResponseForm::Regex(regex.into()));
        }
        compare(&factory, &ResponseForm::Choice(vec!["abba".into(), "abcd 01".into(), "0".into()]));
        for schema in [
            json!({ "type": "string", "pattern": "^[a-d ]{60}$" }),
            json!({ "type": "string", "maxLength": 30 }),
            json!({ "type": "array", "items": { "type": "string", "pattern": "^[ab]{25}[01]$" }, "minItems": 2 }),
            json!({ "type": "object", "properties": { "abcd": { "type": "integer" }, "a": { "const": "ab" } },
                    "required": ["abcd"], "additionalProperties": false }),
        ] {
            compare(&factory, &ResponseForm::Json(schema));
        }
        compare(&factory, &ResponseForm::Lark("start: A B\nA: /[ab]{30}/\nB: /[cd01]{40}/".into()));
    }

    #[test]
    fn a_count_has_few_masks() {
        let factory = factory();
        let longest = factory.tok_env().tok_trie().max_token_len();
        let (masks, kept) = compare(&factory, &ResponseForm::Regex("[a-d ]{1000}".into()));
        assert!(masks == 6 * 120 && (1..=longest + 1).contains(&kept), "{kept} of {masks} masks");
        // Masks after which a lexeme may end are those of the parser.
        let (_, kept) = compare(&factory, &ResponseForm::Json(json!({ "type": "string" })));
        assert_eq!(kept, 0);
    }
}
