//! `text:python-tool`: a problem that is easier with a computer. The reply to a fenced block is its output; a turn
//! without one is the model's answer to the problem.

use super::environment::{Row, Said, Start, TextEnvironment};
use super::guess::last_number;
use plimsoll_base::{Result, rng::below};
use plimsoll_reward::{Programs, fenced_program};
use plimsoll_text::Message;
use std::sync::Arc;

/// Characters of a program's output shown to the model.
const OUTPUT_CHARS_MAX: usize = 2000;

pub(crate) const ROW: Row = Row {
    name: "text:python-tool",
    has_workers: true,
    open: |settings, stop| {
        let (python, memory) = (settings.python.as_deref(), settings.worker_memory);
        let programs = Programs::new("python-tool", python, memory, settings.step_timeout, stop.clone());
        let programs = Arc::new(programs);
        Ok(Arc::new(move || Box::new(PythonTool { programs: programs.clone(), answer: 0 })))
    },
};

struct PythonTool {
    programs: Arc<Programs>,
    answer: i64,
}

impl TextEnvironment for PythonTool {
    fn reset(&mut self, start: &Start) -> Vec<Message> {
        let number = |draw: u32, low: u64, high: u64| {
            let [a, b, ..] = start.draw(draw);
            (low + below(a, b, high - low)) as i64
        };
        let (a, b, c) = (number(0, 1000, 10_000), number(1, 1000, 10_000), number(2, 10, 1000));
        self.answer = a * b + c;
        let text = format!(
            "What is {a} * {b} + {c}? You may write Python in a block that begins with ```python and ends with ```: I run it and show you what it prints. When you know the answer, reply with the number and without a block."
        );
        vec![Message::new("user", text)]
    }

    /// No turn changes the task.
    fn take_up(&mut self, _turns: usize) {}

    fn step(&mut self, response: &str) -> Result<Said> {
        let Some(program) = fenced_program(response) else {
            let right = last_number(response) == Some(self.answer);
            return Ok(Said::end(f64::from(u8::from(right))));
        };
        let (printed, broke) = self.programs.run(&program)?;
        let shown: String = printed.chars().take(OUTPUT_CHARS_MAX).collect();
        let mut text = match shown.trim_end() {
            "" => "It printed nothing.".to_string(),
            shown => format!("Output:\n{shown}"),
        };
        if let Some(why) = broke {
            text += &format!("\nIt did not come to its end: {why}");
        }
        Ok(Said::words(text))
    }
}
