//! Steps of a run in ticks, without a model: responses have given lengths, and a step ends as a run's does, by the
//! same `GroupTimes`.

use super::lengths::ResponseLengths;
use crate::cost::Stretch;
use plimsoll_rollout::GroupTimes;

/// Responses of a simulation's measured steps together, about: enough that a tail of 1 % is drawn a thousand times.
const RESPONSES: usize = 100_000;
/// Measured steps.
const STEPS: std::ops::RangeInclusive<usize> = 20..=200;

/// The sizes that decide when groups end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// P.
    pub prompts: usize,
    /// G.
    pub group: usize,
    pub carry: usize,
    /// Most tokens of a response.
    pub new_tokens: usize,
    /// Tokens of older weights for which a step waits.
    pub lag_tokens_max: Option<u32>,
}

/// The tokens and groups that one step draws and trains.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    /// T.
    pub ticks: u64,
    /// Responses under way when it begins.
    pub places: u64,
    pub drawn: u64,
    /// Tokens of the groups that it trains.
    pub trained: u64,
    /// Those of these tokens that older weights drew, and the steps between drawing and training, all added.
    pub stale: u64,
    pub ages: u64,
    /// Ticks in which fewer than half of the places draw.
    pub tail: u64,
    /// Prompts that begin, and groups that go on, with the response tokens whose keys are computed again.
    pub joined: u64,
    pub again: (u64, u64),
    pub stretches: Vec<Stretch>,
}

impl Step {
    /// Returns the share of the places of responses under way, over all ticks, in which nothing is drawn.
    pub fn idle_share(&self) -> f64 {
        match self.places * self.ticks {
            0 => 0.0,
            all => 1.0 - self.drawn as f64 / all as f64,
        }
    }
}

/// A response: its length, and what each step drew of it.
struct Response {
    length: u64,
    so_far: u64,
    drawn: Vec<(u64, u64)>,
}

impl Response {
    fn left(&self) -> u64 {
        self.length - self.so_far
    }
}

/// A run without an end.
pub(super) struct Simulation<'l> {
    sizes: Sizes,
    lengths: &'l ResponseLengths,
    groups: Vec<Vec<Response>>,
    begun: u64,
    step: u64,
}

impl<'l> Simulation<'l> {
    pub fn new(sizes: Sizes, lengths: &'l ResponseLengths) -> Simulation<'l> {
        Simulation { sizes, lengths, groups: Vec::new(), begun: 0, step: 0 }
    }

    /// Returns the steps after those in which the first groups, which all begin together, are trained.
    pub fn steady(&mut self) -> Vec<Step> {
        let Sizes { prompts, group, carry, .. } = self.sizes;
        (0..1 + 2 * carry.div_ceil(prompts)).for_each(|_| drop(self.step()));
        let steps = (RESPONSES / (prompts * group)).clamp(*STEPS.start(), *STEPS.end());
        (0..steps).map(|_| self.step()).collect()
    }

    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        for group in &self.groups {
            let going = || group.iter().filter(|response| response.left() > 0 && response.so_far > 0);
            step.again.0 += u64::from(going().next().is_some());
            step.again.1 += going().map(|response| response.so_far).sum::<u64>();
        }
        step.joined = self.join();
        let (ticks, chosen) = self.ends();
        step.ticks = ticks;
        self.draw(&mut step);
        let mut chosen = chosen.into_iter().peekable();
        for (g, group) in std::mem::take(&mut self.groups).into_iter().enumerate() {
            match chosen.next_if_eq(&g) {
                Some(_) => self.train(&group, &mut step),
                None => self.groups.push(group),
            }
        }
        self.step += 1;
        step
    }

    /// Begins prompts until there are P and those of `carry` under way. Returns how many.
    fn join(&mut self) -> u64 {
        let Sizes { prompts, group, carry, new_tokens, .. } = self.sizes;
        let joined = (prompts + carry - self.groups.len()) as u64;
        for number in self.begun..self.begun + joined {
            let length = |of_group| self.lengths.length(number, of_group, group).clamp(1, new_tokens as u64);
            let response = |of_group| Response { length: length(of_group), so_far: 0, drawn: Vec::new() };
            self.groups.push((0..group).map(response).collect());
        }
        self.begun += joined;
        joined
    }

    /// Returns T, and the groups that the step trains.
    fn ends(&self) -> (u64, Vec<usize>) {
        let is_due = |group: &Vec<Response>| {
            let most = self.sizes.lag_tokens_max.map_or(u64::MAX, u64::from);
            group.iter().any(|response| response.left() > 0 && response.so_far >= most)
        };
        let mut times = GroupTimes::new(self.sizes.prompts, self.groups.iter().map(is_due).collect());
        for (g, group) in self.groups.iter().enumerate() {
            times.end(g, group.iter().map(Response::left).max().unwrap_or(0));
        }
        (times.bound(), times.chosen())
    }

    /// Draws every response to its end or to T.
    fn draw(&mut self, step: &mut Step) {
        let mut draws: Vec<(u64, u64)> = Vec::new();
        for response in self.groups.iter_mut().flatten().filter(|response| response.left() > 0) {
            let tokens = response.left().min(step.ticks);
            draws.push((tokens, response.so_far));
            response.so_far += tokens;
            response.drawn.push((self.step, tokens));
        }
        // The shortest first: after each end one draws less.
        draws.sort_unstable();
        let half = draws.len() / 2;
        step.places = draws.len() as u64;
        step.drawn = draws.iter().map(|(tokens, _)| tokens).sum();
        step.tail = draws.get(half).map_or(0, |(tokens, _)| step.ticks - tokens);
        let mut before: u64 = draws.iter().map(|(_, so_far)| so_far).sum();
        let (mut tick, mut rows) = (0, draws.len());
        for (tokens, so_far) in draws {
            if tokens > tick {
                let (ticks, rows) = ((tokens - tick) as f64, rows as f64);
                let tokens = before as f64 / rows + tick as f64 + ticks / 2.0;
                step.stretches.push(Stretch { ticks, rows, tokens });
            }
            (tick, rows, before) = (tokens, rows - 1, before - so_far);
        }
    }

    fn train(&self, group: &[Response], step: &mut Step) {
        for &(drawn, tokens) in group.iter().flat_map(|response| &response.drawn) {
            let age = self.step - drawn;
            step.trained += tokens;
            step.ages += age * tokens;
            step.stale += if age > 0 { tokens } else { 0 };
        }
    }
}
