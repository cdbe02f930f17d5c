//! A program that follows a run and has a word after each step: events go to it as JSON lines over a Unix socket, and a
//! step waits for its answer. The Python package drives runs in this way.

use crate::events::{Event, Observer, ObserverRequest};
use plimsoll_base::{Error, Result, shown, slugs};
use serde::Deserialize;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Shows events to an observer and to the program at the other end of a socket.
pub struct Callback<'o> {
    inner: &'o mut dyn Observer,
    socket: Option<BufReader<UnixStream>>,
    timeout: Duration,
    asked: ObserverRequest,
    error: Option<Error>,
}

/// The answer to a step.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    #[serde(rename = "do")]
    wish: Wish,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Wish {
    Go,
    Save,
    Stop,
}

impl<'o> Callback<'o> {
    /// Connects to a socket. An answer may take `timeout`.
    ///
    /// Errors: `callback-failed`.
    pub fn connect(path: &Path, timeout: Duration, inner: &'o mut dyn Observer) -> Result<Callback<'o>> {
        let connect = || {
            let socket = UnixStream::connect(path)?;
            socket.set_read_timeout(Some(timeout))?;
            socket.set_write_timeout(Some(timeout))?;
            Ok(BufReader::new(socket))
        };
        let socket = connect().map_err(|err: std::io::Error| {
            Error::usage("callback-failed", format!("no program listens at {}: {err}", path.display()))
                .hint("--callback names the Unix socket of a program that listens when the run starts")
        })?;
        Ok(Callback { inner, socket: Some(socket), timeout, asked: ObserverRequest::Nothing, error: None })
    }

    /// Returns the run's end: that of the callback where it has failed, with where the run was saved.
    pub fn ended<T>(self, made: Result<T>) -> Result<T> {
        match (made, self.error) {
            (Err(made), Some(error)) if made.slug == slugs::INTERRUPTED => {
                Err(error.fact(made.message).hint("--resume continues from there, bit for bit"))
            }
            (made, _) => made,
        }
    }

    /// Sends an event, and after a step waits for what to do.
    fn exchange(&mut self, event: &Event) -> Result<ObserverRequest> {
        let Some(socket) = &mut self.socket else { return Ok(ObserverRequest::Nothing) };
        let failed = |words: String| Error::new("callback-failed", words);
        let said = |err: &std::io::Error| match err.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                failed(format!("the callback did not answer for {} s", self.timeout.as_secs()))
            }
            _ => failed(format!("the callback has ended: {err}")),
        };
        let line = serde_json::to_string(event).expect("events are plain data") + "\n";
        socket.get_mut().write_all(line.as_bytes()).map_err(|err| said(&err))?;
        let Event::Step(step) = event else { return Ok(ObserverRequest::Nothing) };
        let mut answer = String::new();
        socket.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut answer).map_err(|err| said(&err))?;
        if answer.is_empty() {
            return Err(failed("the callback has ended: its end of the socket is closed".into()));
        }
        match serde_json::from_str::<Answer>(&answer) {
            Ok(Answer { wish: Wish::Go }) => Ok(ObserverRequest::Nothing),
            Ok(Answer { wish: Wish::Save }) => Ok(ObserverRequest::Save),
            Ok(Answer { wish: Wish::Stop }) => Ok(ObserverRequest::Stop),
            Err(err) => Err(failed(format!(
                "the callback answered step {} with {}: {err}",
                step.step,
                shown(answer.trim_end())
            ))
            .hint(r#"answer with a line {"do": "go"}, {"do": "save"} or {"do": "stop"}"#)),
        }
    }
}

impl Observer for Callback<'_> {
    fn on_event(&mut self, event: &Event) {
        self.inner.on_event(event);
        match self.exchange(event) {
            Ok(ObserverRequest::Nothing) => {}
            Ok(asked) => self.asked = asked,
            Err(error) => {
                self.socket = None;
                self.asked = ObserverRequest::Stop;
                self.error.get_or_insert(error);
            }
        }
    }

    fn asks(&mut self) -> ObserverRequest {
        std::mem::take(&mut self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Silent, StepResult};
    use std::os::unix::net::UnixListener;

    /// Sends an event and two steps to a program that writes `answers`; returns what is asked after each step, the
    /// error, and what the program read.
    fn told(answers: &'static str) -> (Vec<ObserverRequest>, Option<Error>, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let program = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a run");
            stream.write_all(answers.as_bytes()).expect("it listens");
            stream.shutdown(std::net::Shutdown::Write).expect("it is open");
            let mut read = String::new();
            stream.read_to_string(&mut read).map(|_| read).expect("text")
        });
        let mut inner = Silent;
        let mut callback = Callback::connect(&path, Duration::from_secs(60), &mut inner).expect("it listens");
        let mut asked = Vec::new();
        callback.on_event(&Event::Note { text: "first".into() });
        for step in [1, 2] {
            callback.on_event(&Event::Step(StepResult { step, ..StepResult::default() }));
            asked.push(callback.asks());
        }
        let error = callback.error.take();
        drop(callback);
        (asked, error, program.join().expect("it ends"))
    }

    #[test]
    fn a_step_waits_for_its_answer_and_other_events_do_not() {
        let (asked, error, read) = told("{\"do\": \"save\"}\n{\"do\": \"go\"}\n");
        assert_eq!((asked, error), (vec![ObserverRequest::Save, ObserverRequest::Nothing], None));
        let events = ["\"event\":\"note\"", "\"step\":1", "\"step\":2"];
        assert!(read.lines().zip(events).all(|(line, event)| line.contains(event)), "{read}");
        assert_eq!(
            told("{\"do\": \"go\"}\n{\"do\": \"stop\"}\n").0,
            [ObserverRequest::Nothing, ObserverRequest::Stop]
        );
    }

    #[test]
    fn a_callback_that_ends_or_answers_nonsense_stops_the_run_once() {
        for (answers, words) in [
            ("", "its end of the socket is closed"),
            ("nonsense\n", "answered step 1 with nonsense"),
            ("{\"do\": \"go\", \"lr\": 1}\n", "unknown field `lr`"),
            ("{\"do\": \"fly\"}\n", "unknown variant `fly`"),
        ] {
            let (asked, error, _) = told(answers);
            let error = error.expect("it failed");
            assert_eq!(
                (asked, error.slug),
                (vec![ObserverRequest::Stop, ObserverRequest::Nothing], "callback-failed")
            );
            assert!(error.message.contains(words), "{error}");
        }
    }
}
