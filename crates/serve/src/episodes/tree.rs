//! Arranges the responses of one episode into sequences.
//!
//! A request whose prompt begins with an earlier prompt and its response, token for token, continues after that
//! response; any other begins anew. So an episode is a tree: an agent that only adds messages has one path; one that
//! rewrites its conversation, or asks twice from the same place, has branches. Each response is in one sequence, and
//! the tokens before it are context.

use crate::gate::SampledResponse;
use plimsoll_rollout::Turn;
use plimsoll_text::Message;

/// Bounds the responses and tokens of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeLimits {
    /// Responses of an episode.
    pub turns: usize,
    /// Sequences of an episode.
    pub branches: usize,
    /// Tokens that a sequence may have as its prompt; the rest of a longer one is context in its response.
    pub prompt_tokens: usize,
    /// Tokens of a sequence after that.
    pub response_tokens: usize,
    /// Tokens of one response.
    pub turn_tokens: usize,
}

/// Holds a response that is being drawn, or was.
#[derive(Debug)]
pub(super) struct Response {
    /// The response whose tokens, with those before it, begin the prompt.
    parent: Option<usize>,
    /// The prompt after them.
    context: Vec<u32>,
    /// True if a sequence begins with it.
    begins: bool,
    /// Digest of the conversation before it, if it belongs to a chat.
    pub key: Option<[u8; 32]>,
    /// The messages since its parent.
    pub heard: Vec<Message>,
    pub drawn: Option<SampledResponse>,
}

/// Holds a sequence to train on.
#[derive(Clone, Debug, Default)]
pub struct AgentSequence {
    pub prompt: Vec<u32>,
    /// Tokens after the prompt: those drawn, and context between them.
    pub ids: Vec<u32>,
    /// Log-probability of each of `ids`; NaN where it was not drawn.
    pub logprobs: Vec<f32>,
    pub turns: Vec<Turn>,
    /// The responses that its turns are, by their numbers in the episode.
    pub responses: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub responses: Vec<Response>,
}

/// Says where in the tree a response belongs.
pub(super) struct Place {
    pub parent: Option<usize>,
    pub begins: bool,
    /// Tokens that the response has room for.
    pub room: usize,
}

impl Tree {
    /// Finds the place of a response to a prompt. Of two places the longer one counts, then the earlier.
    pub fn place(&self, prompt: &[u32], limits: &EpisodeLimits) -> Place {
        let mut parent: Option<(usize, usize)> = None;
        for number in 0..self.responses.len() {
            let length = self.matches(number, prompt).filter(|&length| length < prompt.len());
            if let Some(length) = length.filter(|&length| parent.is_none_or(|(_, best)| length > best)) {
                parent = Some((number, length));
            }
        }
        let parent = parent.map(|(number, _)| number);
        let has_child = |of: usize| self.responses.iter().any(|response| response.parent == Some(of));
        let begins = parent.is_none_or(has_child);
        let first = match parent.filter(|_| !begins) {
            Some(parent) => self.first_prompt(parent),
            None => prompt.len(),
        };
        let most = first.min(limits.prompt_tokens) + limits.response_tokens;
        Place { parent, begins, room: most.saturating_sub(prompt.len()).min(limits.turn_tokens) }
    }

    /// Adds a response that begins to be drawn. Returns its number.
    pub fn begin(&mut self, place: &Place, prompt: &[u32]) -> usize {
        let before = place.parent.map_or(0, |parent| self.end(parent));
        let (parent, begins, context) = (place.parent, place.begins, prompt[before..].to_vec());
        self.responses.push(Response { parent, context, begins, key: None, heard: Vec::new(), drawn: None });
        self.responses.len() - 1
    }

    pub fn branches(&self) -> usize {
        self.responses.iter().filter(|response| response.begins).count()
    }

    /// Returns all tokens to the end of a response.
    pub fn tokens(&self, number: usize) -> Vec<u32> {
        let response = &self.responses[number];
        let mut tokens = response.parent.map_or(Vec::new(), |parent| self.tokens(parent));
        tokens.extend_from_slice(&response.context);
        tokens.extend(response.drawn.iter().flat_map(|drawn| &drawn.ids));
        tokens
    }

    /// Returns the sequences, in the order of their first responses. A response without an end is in none.
    pub fn sequences(&self, prompt_tokens: usize) -> Vec<AgentSequence> {
        let mut sequences: Vec<AgentSequence> = Vec::new();
        for (number, response) in self.responses.iter().enumerate() {
            let Some(drawn) = &response.drawn else { continue };
            let goes_on = |sequence: &AgentSequence| sequence.responses.last().copied() == response.parent;
            let sequence = match sequences.iter().position(|s| response.parent.is_some() && goes_on(s)) {
                Some(at) => {
                    sequences[at].add_context(&response.context);
                    &mut sequences[at]
                }
                None => {
                    let mut prompt = response.parent.map_or(Vec::new(), |parent| self.tokens(parent));
                    prompt.extend_from_slice(&response.context);
                    let rest = prompt.split_off(prompt.len().min(prompt_tokens));
                    sequences.push(AgentSequence { prompt, ..AgentSequence::default() });
                    let sequence = sequences.last_mut().expect("it was pushed");
                    sequence.add_context(&rest);
                    sequence
                }
            };
            let start = sequence.ids.len() as u32;
            sequence.ids.extend_from_slice(&drawn.ids);
            sequence.logprobs.extend_from_slice(&drawn.logprobs);
            let end = sequence.ids.len() as u32;
            sequence.turns.push(Turn { start, end, finish: drawn.finish });
            sequence.responses.push(number);
        }
        sequences
    }

    /// Returns the number of tokens to the end of a response if a prompt begins with them.
    fn matches(&self, number: usize, prompt: &[u32]) -> Option<usize> {
        let response = &self.responses[number];
        let drawn = response.drawn.as_ref()?;
        let before = response.parent.map_or(Some(0), |parent| self.matches(parent, prompt))?;
        let rest = prompt.get(before..)?.strip_prefix(response.context.as_slice())?;
        rest.starts_with(&drawn.ids).then_some(before + response.context.len() + drawn.ids.len())
    }

    fn end(&self, number: usize) -> usize {
        let response = &self.responses[number];
        let drawn = response.drawn.as_ref().map_or(0, |drawn| drawn.ids.len());
        response.parent.map_or(0, |parent| self.end(parent)) + response.context.len() + drawn
    }

    /// Returns the tokens before the first response of a sequence.
    fn first_prompt(&self, number: usize) -> usize {
        let response = &self.responses[number];
        match response.parent.filter(|_| !response.begins) {
            Some(parent) => self.first_prompt(parent),
            None => response.parent.map_or(0, |parent| self.end(parent)) + response.context.len(),
        }
    }
}

impl AgentSequence {
    fn add_context(&mut self, tokens: &[u32]) {
        self.ids.extend_from_slice(tokens);
        self.logprobs.resize(self.ids.len(), f32::NAN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_rollout::Finish;

    const LIMITS: EpisodeLimits =
        EpisodeLimits { turns: 8, branches: 4, prompt_tokens: 4, response_tokens: 20, turn_tokens: 5 };

    fn say(tree: &mut Tree, prompt: &[u32], ids: &[u32]) -> (usize, usize) {
        let place = tree.place(prompt, &LIMITS);
        let number = tree.begin(&place, prompt);
        let (logprobs, text) = (vec![-0.5; ids.len()], String::new());
        tree.responses[number].drawn =
            Some(SampledResponse { ids: ids.to_vec(), logprobs, finish: Finish::Eos, text });
        (number, place.room)
    }

    #[test]
    fn a_conversation_that_grows_is_one_sequence() {
        let mut tree = Tree::default();
        assert_eq!(say(&mut tree, &[1, 2, 3], &[10, 11]), (0, 5));
        // Three of prompt and 20 more: 23 - 7 = 16, of which a response takes 5.
        assert_eq!(say(&mut tree, &[1, 2, 3, 10, 11, 4, 5], &[12]), (1, 5));
        assert_eq!(
            tree.place(&[1, 2, 3, 10, 11, 4, 5, 12, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6], &LIMITS).room,
            2
        );
        let sequences = tree.sequences(LIMITS.prompt_tokens);
        let [one] = sequences.as_slice() else { panic!("{sequences:?}") };
        assert_eq!((one.prompt.as_slice(), one.ids.as_slice()), (&[1, 2, 3][..], &[10, 11, 4, 5, 12][..]));
        assert_eq!(one.turns.iter().map(|turn| turn.tokens()).collect::<Vec<_>>(), [0..2, 4..5]);
        let drawn: Vec<bool> = one.logprobs.iter().map(|logprob| !logprob.is_nan()).collect();
        assert_eq!(drawn, [true, true, false, false, true]);
        assert_eq!(tree.branches(), 1);
    }

    #[test]
    fn a_rewritten_conversation_branches_and_no_response_is_in_two_sequences() {
        let mut tree = Tree::default();
        say(&mut tree, &[1], &[10]);
        say(&mut tree, &[1, 10, 2], &[11]);
        // The same place again, and a conversation without the first answer.
        say(&mut tree, &[1, 10, 2], &[12]);
        say(&mut tree, &[1, 9], &[13]);
        // After the second branch.
        say(&mut tree, &[1, 10, 2, 12, 3], &[14]);
        let sequences = tree.sequences(LIMITS.prompt_tokens);
        let shown: Vec<_> =
            sequences.iter().map(|s| (s.prompt.clone(), s.ids.clone(), s.responses.clone())).collect();
        assert_eq!(
            shown,
            [
                (vec![1], vec![10, 2, 11], vec![0, 1]),
                (vec![1, 10, 2], vec![12, 3, 14], vec![2, 4]),
                (vec![1, 9], vec![13], vec![3]),
            ]
        );
        assert_eq!(tree.branches(), 3);
    }

    #[test]
    fn what_a_longer_prompt_has_too_much_is_context() {
        let mut tree = Tree::default();
        let (_, room) = say(&mut tree, &[1, 2, 3, 4, 5, 6], &[10]);
        assert_eq!(room, 5);
        let sequences = tree.sequences(LIMITS.prompt_tokens);
        assert_eq!((&*sequences[0].prompt, &*sequences[0].ids), (&[1, 2, 3, 4][..], &[5, 6, 10][..]));
        assert_eq!(sequences[0].turns[0].tokens(), 2..3);
        // Four of prompt and 20 more are full.
        let long: Vec<u32> = (0..24).collect();
        assert_eq!(tree.place(&long, &LIMITS).room, 0);
    }

    #[test]
    fn a_response_that_its_client_left_is_in_no_sequence_and_nothing_goes_on_after_it() {
        let mut tree = Tree::default();
        let place = tree.place(&[1], &LIMITS);
        tree.begin(&place, &[1]);
        say(&mut tree, &[1], &[10]);
        let sequences = tree.sequences(LIMITS.prompt_tokens);
        assert_eq!(sequences.len(), 1);
        assert_eq!(sequences[0].responses, [1]);
    }
}
