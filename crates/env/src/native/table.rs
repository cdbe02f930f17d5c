//! FrozenLake-v1, CliffWalking-v1 and Taxi-v4: environments that are a table of outcomes by state and action. Each step
//! draws one uniform number, even for a certain outcome, as Gymnasium does.

use super::numbers::choice;
use super::numpy_random::NumpyRandom;
use crate::{Environment, Space, Spec, Step};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Options of an environment, by their names in Gymnasium's `make`.
pub type Options = Map<String, Value>;

/// A possible outcome of an action.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Probability of this outcome or an earlier one.
    cumulative: f64,
    state: u32,
    reward: f32,
    terminated: bool,
}

/// The outcomes of all actions in all states, shared by the environments of a kind.
#[derive(Debug)]
pub struct Table {
    id: &'static str,
    num_actions: usize,
    episode_steps_max: Option<u32>,
    /// Cumulative probability of starting in each state.
    starts: Vec<f64>,
    /// By state and action, the same number for each.
    outcomes: Vec<Outcome>,
    /// Number of outcomes of an action.
    num_outcomes: usize,
}

/// An environment that is a table.
#[derive(Clone, Debug)]
pub struct TableEnvironment {
    table: Arc<Table>,
    state: u32,
    random: NumpyRandom,
}

impl TableEnvironment {
    /// Makes an environment of a table.
    pub fn new(table: &Arc<Table>) -> TableEnvironment {
        TableEnvironment { table: table.clone(), state: 0, random: NumpyRandom::default() }
    }

    fn observe(&self, observation: &mut [u8]) {
        observation.copy_from_slice(&i64::from(self.state).to_ne_bytes());
    }
}

impl Environment for TableEnvironment {
    fn spec(&self) -> Spec {
        Spec {
            id: self.table.id.into(),
            observation: Space::discrete(self.table.starts.len() as u64),
            action: Space::discrete(self.table.num_actions as u64),
            episode_steps_max: self.table.episode_steps_max,
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        self.random = NumpyRandom::new(seed);
        let draw = self.random.random();
        let start = self.table.starts.partition_point(|&cumulative| cumulative <= draw);
        // Sums of rounded probabilities may end below a draw; numpy's argmax then gives 0.
        self.state = if start < self.table.starts.len() { start as u32 } else { 0 };
        self.observe(observation);
    }

    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let Table { num_actions, num_outcomes, outcomes, .. } = &*self.table;
        let first = (self.state as usize * num_actions + choice(action) as usize) * num_outcomes;
        let outcomes = &outcomes[first..first + num_outcomes];
        let draw = self.random.random();
        let outcome = outcomes.iter().find(|outcome| outcome.cumulative > draw).unwrap_or(&outcomes[0]);
        self.state = outcome.state;
        self.observe(observation);
        Step { reward: f64::from(outcome.reward), terminated: outcome.terminated, truncated: false }
    }
}

impl Table {
    /// Fills a table with (probability, state, reward, terminated) from `outcomes_of(state, action)`.
    fn new(
        id: &'static str,
        num_actions: usize,
        episode_steps_max: Option<u32>,
        starts: &[f64],
        outcomes_of: impl Fn(u32, usize) -> Vec<(f64, u32, f32, bool)>,
    ) -> Arc<Table> {
        let total: f64 = starts.iter().sum();
        let mut sum = 0.0;
        let starts: Vec<f64> = starts
            .iter()
            .map(|start| {
                sum += start / total;
                sum
            })
            .collect();
        let per_action = |state: u32| (0..num_actions).map(move |action| (state, action));
        let lists: Vec<_> =
            (0..starts.len() as u32).flat_map(per_action).map(|(s, a)| outcomes_of(s, a)).collect();
        let num_outcomes = lists.iter().map(Vec::len).max().unwrap_or(1);
        let mut outcomes = Vec::with_capacity(lists.len() * num_outcomes);
        for list in lists {
            let mut cumulative = 0.0;
            for &(probability, state, reward, terminated) in &list {
                cumulative += probability;
                outcomes.push(Outcome { cumulative, state, reward, terminated });
            }
            // This action has fewer outcomes than others: the rest is never reached.
            let (_, state, reward, terminated) = list[0];
            let rest = Outcome { cumulative: 0.0, state, reward, terminated };
            outcomes.extend(std::iter::repeat_n(rest, num_outcomes - list.len()));
        }
        Arc::new(Table { id, num_actions, episode_steps_max, starts, outcomes, num_outcomes })
    }
}

const LAKE_4X4: [&str; 4] = ["SFFF", "FHFH", "FFFH", "HFFG"];
const LAKE_8X8: [&str; 8] =
    ["SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"];

/// Makes FrozenLake-v1: left, down, right, up over ice with holes. Options: `is_slippery` (true), `map_name` ("4x4").
///
/// Errors: `env-bad-option`.
pub(super) fn frozen_lake(options: &mut Options) -> Result<Arc<Table>> {
    let bad = |name: &str, value: &Value, takes: &str| {
        Error::usage("env-bad-option", format!("FrozenLake-v1: `{name}` is {value}"))
            .hint(format!("`env_options.{name}` takes {takes}"))
    };
    let is_slippery = match options.remove("is_slippery") {
        None => true,
        Some(value) => value.as_bool().ok_or_else(|| bad("is_slippery", &value, "true or false"))?,
    };
    let map: Vec<&[u8]> = match options.remove("map_name").as_ref().map(|value| (value, value.as_str())) {
        None | Some((_, Some("4x4"))) => LAKE_4X4.iter().map(|row| row.as_bytes()).collect(),
        Some((_, Some("8x8"))) => LAKE_8X8.iter().map(|row| row.as_bytes()).collect(),
        Some((value, _)) => return Err(bad("map_name", value, "\"4x4\" or \"8x8\"")),
    };
    let size = map.len();
    let letter = move |state: u32| map[state as usize / size][state as usize % size];
    let starts: Vec<f64> =
        (0..(size * size) as u32).map(|state| f64::from(u8::from(letter(state) == b'S'))).collect();
    let moved = |state: u32, direction: usize| {
        let (row, column) = (state as usize / size, state as usize % size);
        let (row, column) = match direction {
            0 => (row, column.saturating_sub(1)),
            1 => ((row + 1).min(size - 1), column),
            2 => (row, (column + 1).min(size - 1)),
            _ => (row.saturating_sub(1), column),
        };
        (row * size + column) as u32
    };
    let outcomes = |state: u32, action: usize| {
        if matches!(letter(state), b'G' | b'H') {
            return vec![(1.0, state, 0.0, true)];
        }
        let outcome = |probability: f64, direction: usize| {
            let next = moved(state, direction);
            let reward = if letter(next) == b'G' { 1.0 } else { 0.0 };
            (probability, next, reward, matches!(letter(next), b'G' | b'H'))
        };
        if !is_slippery {
            return vec![outcome(1.0, action)];
        }
        let (straight, aside) = (1.0 / 3.0, (1.0 - 1.0 / 3.0) / 2.0);
        vec![outcome(aside, (action + 3) % 4), outcome(straight, action), outcome(aside, (action + 1) % 4)]
    };
    // The name decides: FrozenLake-v1 has 100 with either map.
    Ok(Table::new("FrozenLake-v1", 4, Some(100), &starts, outcomes))
}

/// Makes CliffWalking-v1: up, right, down, left along a cliff; a fall leads back to the start.
pub(super) fn cliff_walking() -> Arc<Table> {
    const ROWS: i64 = 4;
    const COLUMNS: i64 = 12;
    const START: u32 = 36;
    let mut starts = vec![0.0; (ROWS * COLUMNS) as usize];
    starts[START as usize] = 1.0;
    Table::new("CliffWalking-v1", 4, None, &starts, |state, action| {
        let (row, column) = (i64::from(state) / COLUMNS, i64::from(state) % COLUMNS);
        let (down, right) = [(-1, 0), (0, 1), (1, 0), (0, -1)][action];
        let (row, column) = ((row + down).clamp(0, ROWS - 1), (column + right).clamp(0, COLUMNS - 1));
        match (row, column) {
            (3, 1..=10) => vec![(1.0, START, -100.0, false)],
            _ => vec![(1.0, (row * COLUMNS + column) as u32, -1.0, (row, column) == (3, 11))],
        }
    })
}

/// Between columns of the taxi's town: `|` is a wall.
const TOWN: [&[u8]; 5] = [b"|R: | : :G|", b"| : | : : |", b"| : : : : |", b"| | : | : |", b"|Y| : |B: |"];
/// Where passengers wait and go.
const STANDS: [(u32, u32); 4] = [(0, 0), (0, 4), (4, 0), (4, 3)];

/// Makes Taxi-v4: south, north, east, west, pick up, drop off. Dietterich 2000. Passenger 4 is in the taxi.
pub(super) fn taxi() -> Arc<Table> {
    let starts: Vec<f64> = (0..500u32)
        .map(|state| (state / 4 % 5, state % 4))
        .map(|(passenger, goal)| f64::from(u8::from(passenger < 4 && passenger != goal)))
        .collect();
    Table::new("Taxi-v4", 6, Some(200), &starts, |state, action| {
        let (goal, passenger) = (state % 4, state / 4 % 5);
        let (column, row) = (state / 20 % 5, state / 100);
        let here = STANDS.iter().position(|&stand| stand == (row, column)).map(|stand| stand as u32);
        let open = |at: u32| TOWN[row as usize][at as usize] == b':';
        let at = |row: u32, column: u32, passenger: u32| ((row * 5 + column) * 5 + passenger) * 4 + goal;
        let (next, reward, terminated) = match action {
            0 => (at((row + 1).min(4), column, passenger), -1.0, false),
            1 => (at(row.saturating_sub(1), column, passenger), -1.0, false),
            2 if open(2 * column + 2) => (at(row, column + 1, passenger), -1.0, false),
            3 if open(2 * column) => (at(row, column - 1, passenger), -1.0, false),
            4 if passenger < 4 && here == Some(passenger) => (at(row, column, 4), -1.0, false),
            5 if passenger == 4 && here == Some(goal) => (at(row, column, goal), 20.0, true),
            5 if passenger == 4 && here.is_some() => (at(row, column, here.unwrap_or(0)), -1.0, false),
            4 | 5 => (state, -10.0, false),
            _ => (state, -1.0, false),
        };
        vec![(1.0, next, reward, terminated)]
    })
}

#[cfg(test)]
impl super::golden_tests::Native for TableEnvironment {
    fn set_state(&mut self, state: &[f64]) {
        self.state = state[0] as u32;
    }

    fn state(&self) -> Vec<f64> {
        vec![f64::from(self.state)]
    }

    fn observe(&self, observation: &mut [u8]) {
        self.observe(observation);
    }
}
