//! `text:countdown`: an expression over given numbers that makes a target; the reply to a wrong one says why.

use super::environment::{Row, Said, Start, TextEnvironment};
use plimsoll_base::{Result, rng::below};
use plimsoll_reward::solves_countdown;
use plimsoll_text::Message;
use std::sync::Arc;

/// Numbers of a puzzle, and the largest of them.
const NUMBERS: [u64; 2] = [3, 4];
const LARGEST: u64 = 50;
/// Draws after which any sum becomes the puzzle's target.
const DRAWS_MAX: u32 = 64;

pub(crate) const ROW: Row = Row {
    name: "text:countdown",
    has_workers: false,
    open: |_, _| Ok(Arc::new(|| Box::new(Countdown::default()))),
};

/// A puzzle that has a solution.
#[derive(Debug, Default)]
struct Countdown {
    numbers: Vec<i64>,
    target: i64,
}

impl TextEnvironment for Countdown {
    fn reset(&mut self, start: &Start) -> Vec<Message> {
        let (numbers, target) = puzzle(start);
        let list: Vec<String> = numbers.iter().map(i64::to_string).collect();
        let text = format!(
            "Use each of the numbers {} exactly once, with + - * / and brackets, to make {target}. Reply with the expression in <answer> </answer>. If it is wrong I say why, and you may try again.",
            list.join(", ")
        );
        (self.numbers, self.target) = (numbers, target);
        vec![Message::new("user", text)]
    }

    /// No turn changes the task.
    fn take_up(&mut self, _turns: usize) {}

    fn step(&mut self, response: &str) -> Result<Said> {
        Ok(match solves_countdown(response, &self.numbers, self.target) {
            Ok(()) => Said::end(1.0),
            Err(why) => Said::words(format!("That is wrong: {why}. Try again.")),
        })
    }
}

/// Draws numbers and a target from 1 to 100 that they make by + - * from left to right in some order.
fn puzzle(start: &Start) -> (Vec<i64>, i64) {
    let count = NUMBERS[start.draw(0)[0] as usize % 2] as u32;
    for draw in 0..DRAWS_MAX {
        let number = |i: u32| {
            let [a, b, op, _] = start.draw(1 + draw * 8 + i);
            (1 + below(a, b, LARGEST) as i64, op % 3)
        };
        let drawn: Vec<(i64, u32)> = (0..count).map(number).collect();
        let first = drawn[0].0;
        let target = drawn[1..].iter().fold(first, |value, &(number, op)| match op {
            0 => value + number,
            1 => value - number,
            _ => value * number,
        });
        let mut numbers: Vec<i64> = drawn.iter().map(|&(number, _)| number).collect();
        let target = if draw + 1 == DRAWS_MAX { numbers.iter().sum() } else { target };
        if (1..=100).contains(&target) || draw + 1 == DRAWS_MAX {
            // Sorted, so the order does not reveal the solution.
            numbers.sort_unstable();
            return (numbers, target);
        }
    }
    unreachable!("the last draw is taken as it is")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists every value that numbers make with + - * in some order, from left to right.
    fn values(numbers: &[i64]) -> Vec<(i64, String)> {
        if numbers.len() == 1 {
            return vec![(numbers[0], numbers[0].to_string())];
        }
        let mut all = Vec::new();
        for i in 0..numbers.len() {
            let mut rest = numbers.to_vec();
            let n = rest.remove(i);
            for (value, text) in values(&rest) {
                all.push((value + n, format!("({text}+{n})")));
                all.push((value - n, format!("({text}-{n})")));
                all.push((value * n, format!("({text}*{n})")));
            }
        }
        all
    }

    #[test]
    fn every_puzzle_has_a_solution_that_the_environment_takes() {
        for index in 0..100 {
            let mut game = Countdown::default();
            game.reset(&Start::train(1, index));
            let found = values(&game.numbers).into_iter().find(|(value, _)| *value == game.target);
            let (_, text) = found.unwrap_or_else(|| panic!("{game:?}"));
            assert_eq!(game.step(&format!("<answer>{text}</answer>")).unwrap(), Said::end(1.0));
            let said = game.step("<answer>1+1</answer>").unwrap();
            assert!(said.messages[0].content.starts_with("That is wrong: it uses"), "{said:?}");
            assert!(game.step("I give up").unwrap().messages[0].content.contains("no <answer>"));
        }
    }
}
