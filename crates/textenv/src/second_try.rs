//! `text:second-try`: the sum of `builtin:addition`, again after a wrong answer; in the characters of `builtin:nano`.

use super::environment::{Row, Said, Start, TextEnvironment};
use plimsoll_base::Result;
use plimsoll_text::{Message, Prompt, Task};
use serde_json::Value;
use std::sync::Arc;

/// The task of the sums, whose test set is never trained on.
const TASK: &str = "builtin:addition";

pub(crate) const ROW: Row = Row {
    name: "text:second-try",
    has_workers: false,
    open: |_, _| {
        let task = Arc::new(Task::parse(TASK)?);
        let (question, answer) = (String::new(), String::new());
        let fresh = SecondTry { task, question, answer, tried: false };
        Ok(Arc::new(move || Box::new(fresh.clone())))
    },
};

#[derive(Clone, Debug)]
struct SecondTry {
    task: Arc<Task>,
    question: String,
    answer: String,
    tried: bool,
}

impl TextEnvironment for SecondTry {
    fn reset(&mut self, start: &Start) -> Vec<Message> {
        let row = if start.held_out {
            self.task.test_row(start.index)
        } else {
            self.task.train_row(start.seed, start.index)
        };
        let answer = row.columns.get("ground_truth").and_then(Value::as_str);
        self.answer = answer.expect("every row of the task has an answer").to_string();
        self.question = match row.prompt {
            Prompt::Text(text) => text,
            Prompt::Messages(messages) => messages.into_iter().map(|m| m.content).collect(),
        };
        self.tried = false;
        vec![Message::new("user", self.question.clone())]
    }

    fn take_up(&mut self, turns: usize) {
        self.tried = turns > 0;
    }

    fn step(&mut self, response: &str) -> Result<Said> {
        if response.trim() == self.answer {
            return Ok(Said::end(1.0));
        }
        if std::mem::replace(&mut self.tried, true) {
            return Ok(Said::end(0.0));
        }
        Ok(Said::words(self.question.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_sum_is_asked_for_once_more() {
        let task = Arc::new(Task::parse(TASK).unwrap());
        let mut environment =
            SecondTry { task: task.clone(), question: String::new(), answer: String::new(), tried: false };
        let start = Start::train(0, 5);
        let question = environment.reset(&start)[0].content.clone();
        let answer = environment.answer.clone();
        let said = environment.step("1").unwrap();
        assert_eq!(said, Said::words(question.as_str()));
        assert!(said.messages[0].content.chars().all(|c| "0123456789+= ".contains(c)));
        assert_eq!(environment.step(&answer).unwrap(), Said::end(1.0));
        environment.reset(&start);
        assert_eq!(environment.step(&format!(" {answer} ")).unwrap(), Said::end(1.0));
        environment.reset(&start);
        environment.step("no").unwrap();
        assert_eq!(environment.step("1").unwrap(), Said::end(0.0));
        for (turns, said) in [(0, Said::words(question.as_str())), (1, Said::end(0.0))] {
            environment.reset(&start);
            environment.take_up(turns);
            assert_eq!(environment.step("1").unwrap(), said, "after {turns} turns");
        }
        // Evaluation uses the held-out sums, which repeat for larger indices.
        let rows = task.test_rows();
        let Prompt::Text(first) = &rows[0].prompt else { panic!("a text") };
        for index in [0, rows.len() as u64] {
            assert_eq!(environment.reset(&Start::eval(index))[0].content, *first);
        }
    }
}
