//! Shows errors: `error[slug]: ...`, facts, hints, and the exit code. A panic becomes `error[internal]`.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use plimsoll_base::{Error, Exit, Result, visible};
use std::io::Write;
use std::panic;
use std::process::ExitCode;

/// Runs `work` and returns its exit code. Errors are printed on stderr.
pub fn guard(work: impl FnOnce() -> Result<ExitCode> + panic::UnwindSafe) -> ExitCode {
    match panic::catch_unwind(work) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => print(&error),
        // The panic hook has printed it.
        Err(_) => ExitCode::from(Exit::Named as u8),
    }
}

/// Prints `error` on stderr and returns its exit code.
pub fn print(error: &Error) -> ExitCode {
    // The trainer's supervisor reports the rank for which it ended, and why.
    if error.exit == Exit::OtherRank && plimsoll_run::supervise::is_supervised() {
        return ExitCode::from(error.exit as u8);
    }
    eprint(&render(error, colour()));
    ExitCode::from(error.exit as u8)
}

/// Formats an error for a terminal. `colour` marks `error` and `hint`; without hints it points to the error's page.
pub fn render(error: &Error, colour: bool) -> String {
    // Before colours, so that all escape sequences are this program's.
    let mut text = format!("{}\n", visible(&error.to_string()));
    if error.hints.is_empty() {
        text += &format!("hint: `plimsoll explain {}` says what to do\n", error.slug);
    }
    if !colour {
        return text;
    }
    let head = format!("error[{}]", error.slug);
    text.replacen(&head, &format!("\x1b[1;31m{head}\x1b[0m"), 1)
        .replace("\nhint:", "\n\x1b[1;36mhint\x1b[0m:")
}

/// Reports panics as bugs of Plimsoll: a name, the place, and a request to report it.
pub fn install_panic_hook() {
    panic::set_hook(Box::new(|info| {
        // A library failed on a user's file; its caller names the file.
        let is_parquet = std::thread::current().name() == Some(plimsoll_text::PARQUET_THREAD);
        let is_file = plimsoll_text::panic_becomes_an_error() || plimsoll_images::panic_becomes_an_error();
        if is_parquet || is_file {
            return;
        }
        let payload = info.payload();
        let words = payload
            .downcast_ref::<&str>()
            .map(|text| text.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without words".into());
        let place =
            info.location().map_or("an unknown place".into(), |at| format!("{}:{}", at.file(), at.line()));
        let error = Error::new("internal", words.replace('\n', "; "))
            .fact(format!("at {place}, plimsoll {}", env!("CARGO_PKG_VERSION")))
            .hint(format!(
                "this is a fault in plimsoll: please report it at {}",
                env!("CARGO_PKG_REPOSITORY")
            ));
        eprint(&render(&error, colour()));
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
            eprint(&format!("{}\n", visible(&std::backtrace::Backtrace::force_capture().to_string())));
        }
    }));
}

/// Prints clap's message on this command line as an error of Plimsoll; `--help` and `--version` are not errors.
pub fn usage(err: &clap::Error, cli: &clap::Command) -> ExitCode {
    if matches!(
        err.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let _ = err.print();
        let asked = err.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        return ExitCode::from(if asked { 0 } else { Exit::Usage as u8 });
    }
    let text = err.render().to_string();
    let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("the command line is not understood");
    let mut error = Error::usage("bad-usage", first.trim_start_matches("error: "));
    for line in lines {
        match line.trim_start().split_once("tip: ") {
            // No command takes a value that begins with a dash.
            Some((_, tip)) if tip.starts_with("to pass ") => {}
            Some((_, tip)) => error = error.hint(tip),
            None if line.starts_with("For more information") => {}
            None => error = error.fact(line.trim_start()),
        }
    }
    if let Some(hint) = known_otherwise(err, cli) {
        // The meaning is known, so similar names are not suggested.
        error.hints = vec![hint];
    } else if let Some(key) = key_of_flag(err) {
        error.hints = vec![format!("`{key}` is a key of the run file: --set {key}=VALUE")];
    }
    if error.hints.is_empty() {
        let known =
            |word: &String| !word.starts_with('-') && err.get(ContextKind::InvalidSubcommand).is_none();
        let command = std::env::args().nth(1).filter(known).map_or(String::new(), |word| format!(" {word}"));
        error = error.hint(format!("`plimsoll{command} --help` lists what it takes"));
    }
    print(&error)
}

/// (flags of other launchers, our counterpart).
const FLAGS: [(&str, &str); 1] = [(
    "gpus num-gpus n-gpus ngpus gpu nproc nproc-per-node num-processes n-gpus-per-node world-size devices cards tp",
    "--ranks N trains on N cards, one process each",
)];
/// (commands of other programs, our counterpart).
const COMMANDS: [(&str, &str); 8] = [
    ("merge convert save", "`plimsoll checkpoint export RUN --to DIR`, with --merge for an adapter"),
    ("upload publish", "`plimsoll checkpoint push RUN hf:org/name`"),
    ("resume continue", "`plimsoll train RUN.toml --resume`"),
    (
        "chat infer complete sample",
        "`plimsoll generate --model MODEL --prompt TEXT`, or `plimsoll serve MODEL`",
    ),
    ("run sft grpo dpo ppo rloo", "`plimsoll train RUN.toml`; `plimsoll init` writes the file"),
    ("evaluate test score", "`plimsoll eval --model MODEL --data FILE`"),
    ("env check info", "`plimsoll doctor`"),
    ("dashboard ui tensorboard", "`plimsoll watch RUN_DIR`"),
];

/// Returns our counterpart of an unknown flag or command, if there is one.
fn known_otherwise(err: &clap::Error, cli: &clap::Command) -> Option<String> {
    let of = |table: &[(&str, &'static str)], word: &str| -> Option<&'static str> {
        table.iter().find(|(words, _)| words.split(' ').any(|known| known == word)).map(|(_, ours)| *ours)
    };
    match (err.get(ContextKind::InvalidSubcommand), err.get(ContextKind::InvalidArg)) {
        (Some(ContextValue::String(word)), _) => {
            let nested = cli.get_subcommands().find(|command| command.find_subcommand(word).is_some());
            match nested {
                Some(command) => Some(format!("it is `plimsoll {} {word}`", command.get_name())),
                None => of(&COMMANDS, word).map(|ours| format!("it is {ours}")),
            }
        }
        (_, Some(ContextValue::String(flag))) => {
            let name = flag.trim_start_matches('-').split('=').next()?.replace('_', "-");
            let command = std::env::args().nth(1).and_then(|word| cli.find_subcommand(word).cloned())?;
            let has_ranks = command.get_arguments().any(|arg| arg.get_long() == Some("ranks"));
            of(&FLAGS, &name).filter(|_| has_ranks).map(str::to_string)
        }
        _ => None,
    }
}

/// Returns the run file key that an unknown flag such as `--steps` was meant for.
fn key_of_flag(err: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(flag)) = err.get(ContextKind::InvalidArg) else { return None };
    let name = flag.strip_prefix("--")?.split('=').next()?.replace('-', "_");
    (err.kind() == ErrorKind::UnknownArgument).then(|| plimsoll_config::key_named(&name))?
}

fn colour() -> bool {
    crate::terminal::is_stderr() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints to stderr; ignores failures, because it may be closed.
fn eprint(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_marks_the_head_and_the_hints_only() {
        let error = Error::usage("bad-set", "a: hint: b").fact("c").hint("d");
        assert_eq!(render(&error, false), "error[bad-set]: a: hint: b\n  c\nhint: d\n");
        assert_eq!(
            render(&error, true),
            "\x1b[1;31merror[bad-set]\x1b[0m: a: hint: b\n  c\n\x1b[1;36mhint\x1b[0m: d\n"
        );
        // What others wrote has no escape sequences of its own, coloured or not.
        let quoted = Error::usage("bad-value", "\x1b[2J\u{9b}31m").fact("\u{202e}").hint("\x1b]0;t\x07");
        let expect = "error[bad-value]: \\u{1b}[2J\\u{9b}31m\n  \\u{202e}\nhint: \\u{1b}]0;t\\u{7}\n";
        assert_eq!(render(&quoted, false), expect);
        let coloured = render(&quoted, true);
        assert_eq!(
            coloured.replace("\x1b[1;31m", "").replace("\x1b[1;36m", "").replace("\x1b[0m", ""),
            expect
        );
        let bare = render(&Error::new("io-error", "x"), false);
        assert_eq!(bare, "error[io-error]: x\nhint: `plimsoll explain io-error` says what to do\n");
    }
}
