//! Decides whether stderr is a terminal. A trainer's stderr is a pipe to its supervisor, which forwards every byte, so
//! the supervisor's stderr decides; an environment variable passes that on.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use plimsoll_base::visible;
use plimsoll_run::under_way;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// "1" for a trainer whose supervisor's stderr is a terminal.
const VARIABLE: &str = "PLIMSOLL_TERMINAL";
const HZ: u8 = 8;
/// Interval at which a live line checks for progress.
const TICK: Duration = Duration::from_millis(500);
const TICK_STACK_BYTES: usize = 128 << 10;
/// Columns of a terminal of unknown width.
const COLUMNS: u16 = 80;

/// Returns the environment variables that tell the trainer about the supervisor's terminal.
pub fn for_child() -> Vec<(String, String)> {
    vec![(VARIABLE.into(), if is_stderr() { "1".into() } else { String::new() })]
}

pub fn is_stderr() -> bool {
    io::stderr().is_terminal() || is_piped_to_one()
}

/// Clears the live line on stderr; it reappears below what is printed next.
pub fn clear_line() {
    if is_stderr() {
        // A closed stderr will not show what follows either.
        let _ = io::stderr().write_all(b"\r\x1b[2K");
    }
}

/// Returns the width of stdout's terminal; `None` if it is a file or a pipe.
pub fn stdout_columns() -> Option<usize> {
    let stdout = io::stdout();
    let columns = || plimsoll_run::supervise::terminal_columns(&File::open("/dev/stdout").ok()?);
    stdout.is_terminal().then(|| usize::from(columns().unwrap_or(COLUMNS)))
}

/// A live line on stderr. It may contain outside text, so all of it is made safe for a terminal here.
pub struct LiveLine {
    bar: ProgressBar,
    /// The line last shown, without the progress.
    shown: Arc<Mutex<String>>,
    /// The thread that adds the progress ends when this is dropped.
    ticks: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl LiveLine {
    /// Shows progress within a part of a step before the rest of the line, until this line ends.
    fn tick(mut self) -> LiveLine {
        let (stop, stopped) = mpsc::channel();
        let (bar, shown) = (self.bar.clone(), Arc::clone(&self.shown));
        let mut is_added = false;
        let tick = move || {
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                let words = under_way::words();
                if words.is_some() || is_added {
                    is_added = words.is_some();
                    let before = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    bar.set_message(match words {
                        Some(words) => format!("{words}  {before}"),
                        None => before,
                    });
                }
            }
        };
        // Without the thread only those words are missing.
        let thread = thread::Builder::new().name("live-line".into()).stack_size(TICK_STACK_BYTES);
        self.ticks = thread.spawn(tick).ok().map(|thread| (stop, thread));
        self
    }

    /// Prints a line above the live one.
    pub fn say(&self, line: &str) {
        self.bar.println(visible(line));
    }

    pub fn show(&self, message: &str) {
        let message = visible(message).into_owned();
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&message);
        self.bar.set_message(message);
    }

    pub fn set_position(&self, done: u64) {
        self.bar.set_position(done);
    }

    pub fn set_length(&self, all: u64) {
        self.bar.set_length(all);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.ticks.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// Returns a live line on stderr; `None` if `quiet` or not a terminal.
pub fn live_line(quiet: bool) -> Option<LiveLine> {
    if quiet || !is_stderr() {
        return None;
    }
    let target = if is_piped_to_one() {
        let tty = File::options().read(true).open("/dev/tty").ok();
        ProgressDrawTarget::term_like_with_hz(Box::new(PipedTerminal { tty }), HZ)
    } else {
        ProgressDrawTarget::stderr_with_hz(HZ)
    };
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("the template is a literal"));
    Some(LiveLine { bar, shown: Arc::default(), ticks: None }.tick())
}

fn is_piped_to_one() -> bool {
    let is_passed_on = plimsoll_run::supervise::is_supervised() || is_rank_0_of_a_launch();
    is_passed_on && std::env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

/// Returns true for rank 0 of `train --ranks`, whose output that process passes to its stderr unchanged.
fn is_rank_0_of_a_launch() -> bool {
    let launch = std::env::var(plimsoll_ranks::LAUNCH_VARIABLE).unwrap_or_default();
    launch.starts_with("0/")
        && launch.rsplit(':').next() == Some(&std::os::unix::process::parent_id().to_string())
}

/// A terminal at the far end of a pipe: ANSI sequences go to stderr, the width comes from the terminal.
#[derive(Debug)]
struct PipedTerminal {
    tty: Option<File>,
}

impl PipedTerminal {
    fn put(&self, text: &str) -> io::Result<()> {
        io::stderr().write_all(text.as_bytes())
    }

    fn moved(&self, count: usize, letter: char) -> io::Result<()> {
        if count == 0 { Ok(()) } else { self.put(&format!("\x1b[{count}{letter}")) }
    }
}

impl TermLike for PipedTerminal {
    fn width(&self) -> u16 {
        self.tty.as_ref().and_then(plimsoll_run::supervise::terminal_columns).unwrap_or(COLUMNS)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.put(&format!("{s}\n"))
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.put(s)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.put("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().flush()
    }
}
