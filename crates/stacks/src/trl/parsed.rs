//! Scripts whose settings a parser reads, `TrlParser` or `HfArgumentParser`: they are in the command alone, which is in
//! a shell script next to it, or in the text at the top of the script.

use super::script;
use crate::launch::shell::{self, Command, word::Word};
use crate::launch::source::Source;
use crate::setting::{OF_TEXT, Setting, one_line};
use plimsoll_base::{Error, Result, read_small_text};
use std::path::{Path, PathBuf};

/// Longest script named by a command, equal to the limit of the file itself.
const SCRIPT_BYTES_MAX: u64 = 1 << 20;
/// Most commands of the text at the top of a script.
const COMMANDS_MAX: usize = 16;

/// Reads `accelerate launch X.py FLAGS`: trainer, data and rewards from X.py in the same folder, the rest from FLAGS.
pub(super) fn command_next_to_script(source: &Source<'_>) -> Result<Option<Vec<Setting>>> {
    let Some(folder) = Path::new(source.path).parent() else { return Ok(None) };
    let is_script = |word: &Word| {
        word.text.ends_with(".py") && find(folder, word).is_some_and(|(text, _)| script::is_parsed(&text))
    };
    let command = shell::trainer(source.text, |words| words.iter().position(is_script));
    let Some((command, (text, place))) = command
        .and_then(|command| Some((find(folder, command.word())?, command)))
        .map(|(found, command)| (command, found))
    else {
        return Ok(None);
    };
    let path = place.to_string_lossy();
    let given = script::read(&Source { path: &path, text: &text, choice: source.choice, notebook: None })?;
    // Lines are those of the command's file.
    let given = given.into_iter().map(|one| Setting { line: 0, ..one }).collect();
    Ok(Some(with_command(given, command)))
}

fn find(folder: &Path, word: &Word) -> Option<(String, PathBuf)> {
    let name = Path::new(&word.text).file_name()?;
    let places = [folder.join(&word.text), folder.join(name)];
    let place = places.into_iter().find(|place| place.is_file())?;
    Some((read_small_text(&place, SCRIPT_BYTES_MAX).ok()?, place))
}

/// Returns a script's settings with those of its command.
fn with_command(given: Vec<Setting>, command: Command) -> Vec<Setting> {
    // Names from the parser are flags, or defaults.
    let is_parsed =
        |one: &Setting| one.key == "args" || (one.unreadable.is_some() && one.value.contains("args."));
    let given: Vec<Setting> = given.into_iter().filter(|one| !is_parsed(one)).collect();
    let flags = shell::flags(command.arguments());
    command.launcher().into_iter().chain(given).chain(flags).chain(command.others).collect()
}

/// Reads the settings of a script, `given`, with the command in the text at its top.
///
/// Errors, exit code 2: `import-nothing-found` without one, `import-command-unknown` for several of which none is
/// chosen.
pub(super) fn command_of_text(source: &Source<'_>, given: Vec<Setting>) -> Result<Vec<Setting>> {
    let commands = commands(source.text);
    let index = match (source.choice.command, commands.len()) {
        (_, 0) => return Err(no_command(source)),
        (Some(number), count) if (1..=count).contains(&number) => number - 1,
        (None, 1) => 0,
        _ => return Err(which_command(source, &commands)),
    };
    let (line, text) = &commands[index];
    let Some(mut command) = shell::trainer(text, trainer_at) else { return Err(no_command(source)) };
    command.move_lines(line - 1);
    let named = Setting::new(OF_TEXT, start_of(text), *line);
    Ok([named].into_iter().chain(with_command(given, command)).collect())
}

fn trainer_at(words: &[Word]) -> Option<usize> {
    words.iter().position(|word| word.text.ends_with(".py"))
}

/// Returns the commands that start a script in the text before the first import, each with its first line.
fn commands(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("import ") || line.starts_with("from ") {
            break;
        }
        let line = line.trim_start_matches(['#', ' ', '$']);
        let starts = ["accelerate launch ", "python ", "python3 ", "torchrun ", "uv run "];
        let is_start = !goes_on && starts.iter().any(|start| line.starts_with(start));
        if !is_start && !goes_on {
            continue;
        }
        // A backslash may be written twice in such a text.
        let part = line.trim_end().trim_end_matches('\\');
        goes_on = part.len() < line.trim_end().len();
        let end = if goes_on { "\\\n" } else { "\n" };
        let part = format!("{part}{end}");
        if is_start {
            found.push((index + 1, part));
        } else if let Some((_, command)) = found.last_mut() {
            *command += &part;
        }
        if found.len() > COMMANDS_MAX {
            break;
        }
    }
    found.retain(|(_, command)| command.contains(".py"));
    found
}

/// Returns a command up to its script, without the flags, which may hold a key.
fn start_of(command: &str) -> String {
    let end = command.find(".py").map_or(0, |at| at + ".py".len());
    one_line(&command[..end])
}

const WRITE_IT: &str = "write its command to a shell script next to it, `accelerate launch FILE.py --flag value ...`, and import that: trainer, data and rewards are the script's, all else is what the flags say";

fn no_command(source: &Source<'_>) -> Error {
    let file = one_line(source.path);
    let message = format!(
        "{file} reads its settings with TrlParser or HfArgumentParser, and has no command in the text at its top"
    );
    Error::usage("import-nothing-found", message).hint(WRITE_IT)
}

fn which_command(source: &Source<'_>, commands: &[(usize, String)]) -> Error {
    let message = format!(
        "{} reads its settings with TrlParser or HfArgumentParser, and the text at its top has {}",
        one_line(source.path),
        match commands.len() {
            1 => "one command".to_owned(),
            count => format!("{count} commands, each of which is a job"),
        }
    );
    let flags = |command: &str| command.split_whitespace().filter(|word| word.starts_with("--")).count();
    let error = Error::usage("import-command-unknown", message);
    let error = commands.iter().enumerate().fold(error, |error, (index, (line, command))| {
        error.fact(format!("{}: line {line}: {}, {} flags", index + 1, start_of(command), flags(command)))
    });
    match commands.len() {
        1 => error.hint("leave --command out"),
        count => error.hint(format!("say which: --command 1 to {count}; or {WRITE_IT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_the_text_at_the_top() {
        let text = "\"\"\"\n# Full:\n```\npython x.py \\\\\n    --a 1 \\\\\n    --b\n```\n# LoRA\naccelerate launch x.py --c\npip install x\n\"\"\"\nimport os\npython y.py\n";
        let found = commands(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], (4, "python x.py \\\n--a 1 \\\n--b\n".to_string()));
        assert_eq!(found[1].0, 9);
    }
}
