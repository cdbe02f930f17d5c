//! Tasks that generate their data: an endless training stream by index, and a fixed test set that shares no row with
//! it for any seed. A row is a pure function of task, seed and index.

use crate::drawn::{DRAWN_TASKS, refuse_drawn};
use crate::labels::{LabelledRow, of_place};
use crate::worse::with_a_digit_changed;
use crate::{Message, PairRow, Prompt, Row, SftRow};
use plimsoll_base::rng::{Stream, below, philox, unit_f32};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Names of the built-in tasks.
pub const TASKS: [&str; 5] = [
    "builtin:addition",
    "builtin:addition-forgetful",
    "builtin:addition-words",
    "builtin:countdown",
    "builtin:reversal",
];

/// The seed of the test sets; a run's seed does not change them.
const TEST_SEED: u64 = 0x504C_494D_534F_4C4C;
/// Numbers of a countdown, each from 10 to 99, and which of them the target is the sum of.
const NUMBERS: u64 = 90;
const SUMS: [&[usize]; 4] = [&[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
/// Share of rows in which the teacher forgets to carry.
const FORGETFUL: f32 = 0.6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Digits,
    Forgetful,
    Words,
    /// Those of three numbers that make a target, in the characters of `builtin:nano`.
    Countdown,
    /// Four digits from last to first.
    Reversal,
}

#[derive(Clone, Debug)]
pub struct Task {
    kind: Kind,
    /// Smallest and one past the largest summand.
    range: (u64, u64),
    test: Vec<(u64, u64)>,
    /// Test pairs, in both orders.
    held_out: HashSet<(u64, u64)>,
}

impl Task {
    /// Reads the name of a task of text. Errors: `unknown-task`; `model-takes-no-images` for a task that draws.
    pub fn parse(name: &str) -> Result<Task> {
        refuse_drawn(name)?;
        let (kind, range, num_test) = match name {
            "builtin:addition" => (Kind::Digits, (100, 1000), 1000),
            "builtin:addition-forgetful" => (Kind::Forgetful, (100, 1000), 1000),
            "builtin:addition-words" => (Kind::Words, (10, 100), 300),
            // Three numbers are a number of three digits to the base 90.
            "builtin:countdown" => (Kind::Countdown, (0, NUMBERS.pow(3)), 500),
            "builtin:reversal" => (Kind::Reversal, (10, 100), 500),
            _ => return Err(unknown_task(name)),
        };
        let (mut test, mut held_out) = (Vec::with_capacity(num_test), HashSet::new());
        let mut draw = 0;
        while test.len() < num_test {
            let (a, b) = pair(kind, TEST_SEED, draw, 0, range);
            if held_out.insert((a, b)) {
                held_out.insert((b, a));
                if kind == Kind::Countdown {
                    // Where two numbers are equal, another sum of the same numbers is the same prompt.
                    held_out.extend((0..SUMS.len() as u64).map(|which| (a, which)));
                }
                test.push((a, b));
            }
            draw += 1;
        }
        Ok(Task { kind, range, test, held_out })
    }

    /// Returns row `index` of the training stream of a seed.
    ///
    /// Columns: `ground_truth`; the forgetful teacher also has `completion`, right or wrong, and a countdown, whose
    /// `ground_truth` is the target, its solution.
    pub fn train_row(&self, seed: u64, index: u64) -> Row {
        // A test pair is replaced by another draw; 2,000 of 810,000 pairs are held out, or 600 of 8,100.
        let drawn = (0..).map(|attempt| pair(self.kind, seed, index, attempt, self.range));
        let (a, b) =
            drawn.into_iter().find(|p| !self.held_out.contains(p)).expect("most pairs are not held out");
        let forgets = self.kind == Kind::Forgetful
            && unit_f32(philox(seed, Stream::Task, index, u64::MAX)[0]) < FORGETFUL;
        self.row(a, b, if forgets { forget(a, b) } else { a + b })
    }

    /// Returns the test set, the same for every seed. Its completions are right.
    pub fn test_rows(&self) -> Vec<Row> {
        self.test.iter().map(|&(a, b)| self.row(a, b, a + b)).collect()
    }

    /// Returns row `index` of the test set, which repeats after its last row.
    pub fn test_row(&self, index: u64) -> Row {
        let (a, b) = self.test[(index % self.test.len() as u64) as usize];
        self.row(a, b, a + b)
    }

    /// Returns row `index` of the training stream as a supervised row.
    pub fn sft_row(&self, seed: u64, index: u64) -> SftRow {
        let Row { prompt, columns } = self.train_row(seed, index);
        let text = columns.get("completion").or(columns.get("ground_truth")).and_then(Value::as_str);
        SftRow::answer(prompt, text.expect("every row has an answer"))
    }

    /// Returns row `index` of the training stream as a pair: the right sum against one with a digit changed.
    pub fn pair_row(&self, seed: u64, index: u64) -> PairRow {
        self.pair(self.train_row(seed, index), seed, index)
    }

    /// Returns row `index` of the training stream with a label: right sums at even places, others at odd ones.
    pub fn labelled_row(&self, seed: u64, index: u64) -> LabelledRow {
        of_place(self.pair_row(seed, index), index)
    }

    /// Returns the test set with labels, the same for every seed.
    pub fn test_labels(&self) -> Vec<LabelledRow> {
        self.test_pairs().into_iter().zip(0..).map(|(pair, index)| of_place(pair, index)).collect()
    }

    /// Returns the test set as pairs, the same for every seed.
    pub fn test_pairs(&self) -> Vec<PairRow> {
        let rows = self.test_rows().into_iter().zip(0..);
        rows.map(|(row, index)| self.pair(row, TEST_SEED, index)).collect()
    }

    fn pair(&self, row: Row, seed: u64, index: u64) -> PairRow {
        let Row { prompt, columns } = row;
        let right = if self.kind == Kind::Countdown { "completion" } else { "ground_truth" };
        let chosen = columns[right].as_str().expect("every row has an answer").to_string();
        let rejected = with_a_digit_changed(&chosen, seed, index);
        PairRow { columns, ..PairRow::of_texts(prompt, chosen, rejected) }
    }

    fn row(&self, a: u64, b: u64, completion: u64) -> Row {
        let row = |prompt: String, columns: &[(&str, String)]| {
            let columns = columns.iter().map(|(name, value)| (name.to_string(), json!(value)));
            Row { prompt: Prompt::Text(prompt), columns: columns.collect() }
        };
        match self.kind {
            Kind::Countdown => {
                let (prompt, target, solution) = countdown(a, b);
                return row(prompt, &[("ground_truth", target), ("completion", solution)]);
            }
            Kind::Reversal => {
                let digits = format!("{a}{b}");
                let reversed = digits.chars().rev().collect();
                return row(format!("{digits}="), &[("ground_truth", reversed)]);
            }
            Kind::Digits | Kind::Forgetful | Kind::Words => {}
        }
        let prompt = match self.kind {
            Kind::Words => Prompt::Messages(vec![Message::new("user", format!("What is {a} + {b}?"))]),
            _ => Prompt::Text(format!("{a}+{b}=")),
        };
        let mut columns = Map::from_iter([("ground_truth".to_string(), json!((a + b).to_string()))]);
        if self.kind == Kind::Forgetful {
            columns.insert("completion".to_string(), json!(completion.to_string()));
        }
        Row { prompt, columns }
    }
}

/// Draws a pair of summands; for a countdown its numbers, and which of `SUMS` is asked for.
fn pair(kind: Kind, seed: u64, index: u64, attempt: u64, (low, high): (u64, u64)) -> (u64, u64) {
    let r = philox(seed, Stream::Task, index, attempt);
    let seconds = if kind == Kind::Countdown { SUMS.len() as u64 } else { high - low };
    (low + below(r[0], r[1], high - low), low + below(r[2], r[3], seconds))
}

/// Returns prompt, target and solution: `156=82 94 74=`, `156`, `82+74`.
fn countdown(numbers: u64, which: u64) -> (String, String, String) {
    let numbers = [numbers / NUMBERS / NUMBERS, numbers / NUMBERS % NUMBERS, numbers % NUMBERS];
    let numbers = numbers.map(|number| number + 10);
    let used = SUMS[which as usize].iter().map(|&i| numbers[i]);
    let target = used.clone().sum::<u64>().to_string();
    let words =
        |numbers: &[u64], between: &str| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(between);
    let solution = words(&used.collect::<Vec<_>>(), "+");
    (format!("{target}={}=", words(&numbers, " ")), target, solution)
}

fn forget(mut a: u64, mut b: u64) -> u64 {
    let (mut sum, mut place) = (0, 1);
    while a > 0 || b > 0 {
        sum += (a % 10 + b % 10) % 10 * place;
        (a, b, place) = (a / 10, b / 10, place * 10);
    }
    sum
}

fn unknown_task(name: &str) -> Error {
    let shared = |task: &&str| task.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    let all = || TASKS.iter().chain(&DRAWN_TASKS);
    let nearest = all().max_by_key(|task| (shared(task), std::cmp::Reverse(task.len())));
    Error::usage("unknown-task", format!("no task is called `{name}`"))
        .fact(format!("tasks: {}", all().copied().collect::<Vec<_>>().join(", ")))
        .hint(format!("did you mean {}? A file is named by its path", nearest.expect("there are tasks")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_teacher_who_forgets_drops_every_carry() {
        for (a, b, expect) in [(123, 456, 579), (999, 111, 0), (555, 555, 0), (190, 910, 0), (199, 101, 290)]
        {
            assert_eq!(forget(a, b), expect, "{a} {b}");
        }
    }

    #[test]
    fn a_changed_number_differs_in_one_digit() {
        for which in 0..8 {
            for by in 0..20 {
                let other = with_a_digit_changed("1905", which, by);
                let differ = other.bytes().zip("1905".bytes()).filter(|(a, b)| a != b).count();
                assert!(differ == 1 && other.len() == 4 && !other.starts_with('0'), "{which} {by}: {other}");
            }
        }
        let task = Task::parse("builtin:addition").unwrap();
        let (pair, row) = (task.pair_row(3, 7), task.train_row(3, 7));
        assert_eq!(
            (&pair.prompt, json!(pair.chosen.content)),
            (&row.prompt, row.columns["ground_truth"].clone())
        );
        let places: HashSet<usize> = (0..100)
            .map(|i| task.pair_row(3, i))
            .map(|p| {
                p.chosen.content.bytes().zip(p.rejected.content.bytes()).position(|(a, b)| a != b).unwrap()
            })
            .collect();
        assert!(places.len() >= 3, "{places:?}");
        assert_eq!(task.test_pairs().len(), 1000);
    }

    #[test]
    fn rows_have_the_promised_form() {
        let row = &Task::parse("builtin:addition").unwrap().test_rows()[0];
        let Prompt::Text(text) = &row.prompt else { panic!("text") };
        let (a, b) = text.trim_end_matches('=').split_once('+').unwrap();
        let sum = a.parse::<u64>().unwrap() + b.parse::<u64>().unwrap();
        assert_eq!(row.columns["ground_truth"], sum.to_string());
        assert_eq!(row.columns.len(), 1);
        let words = Task::parse("builtin:addition-words").unwrap();
        assert_eq!(words.test_rows().len(), 300);
        let Prompt::Messages(messages) = words.train_row(0, 0).prompt else { panic!("messages") };
        assert!(messages[0].content.starts_with("What is ") && messages[0].content.ends_with('?'));
    }

    #[test]
    fn a_countdown_has_a_solution_and_a_reversal_is_one() {
        let (countdown, reversal) =
            (Task::parse("builtin:countdown").unwrap(), Task::parse("builtin:reversal").unwrap());
        for index in 0..200 {
            let row = countdown.train_row(5, index);
            let Prompt::Text(text) = &row.prompt else { panic!("text") };
            let (target, numbers) = text.trim_end_matches('=').split_once('=').unwrap();
            let used: Vec<&str> = row.columns["completion"].as_str().unwrap().split('+').collect();
            assert!(used.iter().all(|number| numbers.split(' ').any(|other| other == *number)), "{text}");
            assert_eq!(used.iter().map(|n| n.parse::<u64>().unwrap()).sum::<u64>().to_string(), target);
            assert_eq!(row.columns["ground_truth"], target);
            let pair = countdown.pair_row(5, index);
            assert!(
                pair.chosen != pair.rejected && pair.chosen.content.len() == pair.rejected.content.len(),
                "{pair:?}"
            );
            let row = reversal.train_row(5, index);
            let Prompt::Text(text) = &row.prompt else { panic!("text") };
            let reversed: String = text.trim_end_matches('=').chars().rev().collect();
            assert_eq!(row.columns["ground_truth"], reversed);
            assert_ne!(reversal.pair_row(5, index).rejected.content, reversed);
        }
    }

    #[test]
    fn sixty_percent_of_the_lessons_forget() {
        let task = Task::parse("builtin:addition-forgetful").unwrap();
        let true_task = Task::parse("builtin:addition").unwrap();
        let (mut wrong, mut carrying) = (0, 0);
        for index in 0..10_000 {
            let row = task.train_row(3, index);
            assert_eq!(row.prompt, true_task.train_row(3, index).prompt);
            // Three of four pairs have a carry; on the others both ways agree.
            carrying += usize::from(row.prompt != Prompt::Text(String::new()));
            wrong += usize::from(row.columns["completion"] != row.columns["ground_truth"]);
        }
        // P(no carry in three digits) is about (45/81)(55/100)^2 = 0.168: 0.6 * 0.83 of all lessons are wrong.
        let share = wrong as f64 / carrying as f64;
        assert!((share - 0.499).abs() < 0.03, "{share}");
    }

    #[test]
    fn unknown_tasks_name_the_nearest() {
        let error = Task::parse("builtin:addition-word").unwrap_err();
        assert_eq!(error.slug, "unknown-task");
        assert!(error.hints[0].contains("builtin:addition-words"), "{error}");
    }

    proptest! {
        /// Whatever seed and index: a training prompt is not in the test set, and is the same each time.
        #[test]
        fn train_and_test_never_meet(seed: u64, index: u64, which in 0usize..TASKS.len()) {
            let task = Task::parse(TASKS[which]).unwrap();
            let row = task.train_row(seed, index);
            prop_assert!(task.test_rows().iter().all(|t| t.prompt != row.prompt));
            prop_assert_eq!(&row, &Task::parse(TASKS[which]).unwrap().train_row(seed, index));
        }
    }

    #[test]
    fn a_whole_epoch_of_small_sums_never_meets_the_test_set() {
        let task = Task::parse("builtin:addition-words").unwrap();
        let test: HashSet<String> = task.test_rows().iter().map(|r| format!("{:?}", r.prompt)).collect();
        assert_eq!(test.len(), 300);
        for index in 0..20_000 {
            // The test set's own seed is the hardest case.
            assert!(!test.contains(&format!("{:?}", task.train_row(TEST_SEED, index).prompt)));
        }
    }
}
