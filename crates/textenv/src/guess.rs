//! `text:guess-number`: guess a number from 1 to 100; replies are "higher" or "lower".

use super::environment::{Row, Said, Start, TextEnvironment};
use plimsoll_base::{Result, rng::below};
use plimsoll_text::Message;
use std::sync::Arc;

const LARGEST: u64 = 100;
const RULES: &str = "I am thinking of a whole number from 1 to 100. Guess it: reply with one number. I answer with higher or lower until you have found it.";

pub(crate) const ROW: Row = Row {
    name: "text:guess-number",
    has_workers: false,
    open: |_, _| Ok(Arc::new(|| Box::new(GuessNumber::default()))),
};

#[derive(Debug, Default)]
struct GuessNumber {
    secret: i64,
}

impl TextEnvironment for GuessNumber {
    fn reset(&mut self, start: &Start) -> Vec<Message> {
        let [low, high, ..] = start.draw(0);
        self.secret = 1 + below(low, high, LARGEST) as i64;
        vec![Message::new("user", RULES)]
    }

    /// No turn changes the task.
    fn take_up(&mut self, _turns: usize) {}

    fn step(&mut self, response: &str) -> Result<Said> {
        Ok(match last_number(response) {
            Some(guess) if guess == self.secret => Said::end(1.0),
            Some(guess) if guess < self.secret => Said::words(format!("My number is higher than {guess}.")),
            Some(guess) => Said::words(format!("My number is lower than {guess}.")),
            None => Said::words("Reply with one whole number from 1 to 100."),
        })
    }
}

/// Returns the last whole number in a text.
pub(crate) fn last_number(text: &str) -> Option<i64> {
    let is_digit = |c: char| c.is_ascii_digit();
    let last = text.rsplit(|c: char| !is_digit(c)).find(|part| !part.is_empty())?;
    let before = &text[..text.rfind(last)?];
    // A minus is a sign unless it is between two numbers.
    let rest = before.strip_suffix('-').filter(|rest| !rest.trim_end().ends_with(is_digit));
    let value: i64 = last.parse().ok()?;
    Some(if rest.is_some() { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_the_guess() {
        for (text, expect) in [
            ("42", Some(42)),
            ("First 3, then 57.", Some(57)),
            ("-5", Some(-5)),
            ("9-5", Some(5)),
            ("<answer>7</answer>", Some(7)),
            ("none", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(last_number(text), expect, "{text}");
        }
    }

    #[test]
    fn halving_finds_every_number_in_seven_turns() {
        for index in 0..300 {
            let mut game = GuessNumber::default();
            let start = Start::train(9, index);
            assert_eq!(game.reset(&start), GuessNumber::default().reset(&start));
            let (mut low, mut high, mut turns) = (1, 100, 0);
            loop {
                turns += 1;
                let guess = (low + high) / 2;
                let said = game.step(&format!("I say {guess}")).unwrap();
                if said.done {
                    assert_eq!((said.reward, said.messages.len()), (1.0, 0));
                    break;
                }
                let higher = said.messages[0].content.contains("higher");
                (low, high) = if higher { (guess + 1, high) } else { (low, guess - 1) };
            }
            assert!(turns <= 7, "{index}: {turns}");
        }
    }
}
