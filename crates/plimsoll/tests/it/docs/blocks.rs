//! Fenced blocks of a page, with what their info strings ask for. CONTRIBUTING.md, "The docs", has the rules.

use std::fmt;

/// Languages of blocks that hold no command.
const LANGUAGES: [&str; 9] = ["toml", "json", "python", "yaml", "sh", "rust", "text", "", "jsonl"];

/// Why a command is not run. It is still parsed.
pub const REASONS: [(&str, &str); 5] = [
    ("gpu", "it needs an NVIDIA GPU"),
    ("network", "it fetches something"),
    ("minutes", "it takes minutes; a `train` among them is planned instead"),
    ("tools", "it builds or runs something other than this binary"),
    ("yours", "it names files or runs of the reader's"),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Line of its opening fence, from 1.
    pub line: usize,
    /// First word of the info string.
    pub language: String,
    /// `file=NAME`: the text is written there before the next command.
    pub file: Option<String>,
    /// `no-run=REASON`.
    pub no_run: Option<String>,
    /// `exit=CODE` of the last command; the others end with 0.
    pub exit: i32,
    /// `with=KEY=VALUE,...`: what the test adds as `--set`, so that a run is short.
    pub with: Vec<String>,
    /// `numbers=vary`: those that are shown are of the machine on which the page was written.
    pub numbers_vary: bool,
    /// The text between the fences.
    pub text: Vec<String>,
}

/// A command with the output that is shown below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The command, its continued lines joined.
    pub command: String,
    /// Lines up to the next command.
    pub output: Vec<String>,
}

/// Holds what a writer got wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the page, from 1.
    pub line: usize,
    /// In one line.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

fn fault(line: usize, message: impl Into<String>) -> Fault {
    Fault { line, message: message.into() }
}

/// Returns all blocks of a page, and commands outside of blocks that a test would find.
pub fn blocks(page: &str) -> (Vec<Block>, Vec<Fault>) {
    let (mut blocks, mut faults) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    for (index, line) in page.lines().enumerate() {
        let number = index + 1;
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => match Block::new(number, info) {
                Ok(block) => open = Some(block),
                Err(message) => {
                    faults.push(fault(number, message));
                    open = Some(Block { line: number, ..Block::default() });
                }
            },
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text.push(line.to_string()),
            (None, None) if is_indented_command(line) => {
                faults.push(fault(number, "a command in an indented block: fence it as ```console"));
            }
            (None, None) => {}
        }
    }
    if let Some(block) = open {
        faults.push(fault(block.line, "a fence that is never closed"));
    }
    for block in &blocks {
        faults.extend(block.misplaced());
    }
    (blocks, faults)
}

fn is_indented_command(line: &str) -> bool {
    let is_code = line.starts_with("    ");
    is_code && ["$ ", "plimsoll ", "cargo "].iter().any(|start| line.trim_start().starts_with(start))
}

impl Block {
    fn new(line: usize, info: &str) -> Result<Block, String> {
        let mut words = info.split_whitespace();
        let language = words.next().unwrap_or_default();
        if language != "console" && !LANGUAGES.contains(&language) {
            return Err(format!("no rule for a block of `{language}`"));
        }
        let mut block = Block { line, language: language.to_string(), ..Block::default() };
        for word in words {
            let value = |text: &str| text.to_string();
            match word.split_once('=') {
                Some(("file", name)) => block.file = Some(value(name)),
                Some(("no-run", reason)) if REASONS.iter().any(|(known, _)| *known == reason) => {
                    block.no_run = Some(value(reason));
                }
                Some(("exit", code)) => {
                    block.exit = code.parse().map_err(|_| format!("exit code `{code}`"))?
                }
                Some(("numbers", "vary")) => block.numbers_vary = true,
                Some(("with", sets)) => block.with = sets.split(',').map(value).collect(),
                _ => return Err(format!("`{word}` in an info string")),
            }
        }
        Ok(block)
    }

    fn misplaced(&self) -> Option<Fault> {
        let is_command = |line: &&String| line.trim_start().starts_with("$ ");
        match self.language.as_str() {
            "console" => {
                let first = self.text.first()?;
                (!first.starts_with("$ "))
                    .then(|| fault(self.line, "a console block does not begin with `$ COMMAND`"))
            }
            _ => {
                let line = self.text.iter().find(is_command)?;
                Some(fault(self.line, format!("`{line}` is in a block that is not `console`")))
            }
        }
    }

    /// The commands of a `console` block.
    pub fn commands(&self) -> Vec<Shown> {
        let mut shown: Vec<Shown> = Vec::new();
        if self.language != "console" {
            return shown;
        }
        let mut is_continued = false;
        for line in &self.text {
            let text = line.strip_suffix('\\').unwrap_or(line);
            match (line.strip_prefix("$ "), shown.last_mut()) {
                (Some(_), _) => {
                    shown.push(Shown { command: text[2..].trim_end().to_string(), output: Vec::new() });
                }
                (None, Some(last)) if is_continued => {
                    last.command = format!("{} {}", last.command, text.trim());
                }
                (None, Some(last)) => last.output.push(line.clone()),
                (None, None) => {}
            }
            is_continued = line.ends_with('\\') && (line.starts_with("$ ") || is_continued);
        }
        shown
    }
}

impl Block {
    /// The indices of the lines that are output, in the order of `commands`.
    pub fn output_lines(&self) -> impl Iterator<Item = usize> {
        let mut was_continued = false;
        self.text.iter().enumerate().filter_map(move |(index, line)| {
            let is_command = line.starts_with("$ ") || was_continued;
            was_continued = is_command && line.ends_with('\\');
            (!is_command).then_some(index)
        })
    }
}

/// Returns the code spans that are commands: `plimsoll ...` between backticks, outside fences.
pub fn spans(page: &str) -> Vec<(usize, String)> {
    let mut spans = Vec::new();
    let mut is_fenced = false;
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            let codes = line.split('`').skip(1).step_by(2);
            let commands = codes.filter(|code| code.starts_with("plimsoll "));
            spans.extend(commands.map(|code| (index + 1, code.to_string())));
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_their_attributes() {
        let page = "a\n```toml file=my.toml\na = 1\n```\n```console exit=3 with=a.b=1,c=2\n$ plimsoll x \\\n    --y   # why\nout\n$ ls\n```\n";
        let (found, faults) = blocks(page);
        assert_eq!(faults, []);
        assert_eq!(found[0].file.as_deref(), Some("my.toml"));
        assert_eq!((found[1].exit, &found[1].with[..]), (3, &["a.b=1".to_string(), "c=2".into()][..]));
        let shown = found[1].commands();
        assert_eq!(shown[0].command, "plimsoll x --y   # why");
        assert_eq!((&shown[0].output[..], &shown[1].command[..]), (&["out".to_string()][..], "ls"));
    }

    #[test]
    fn no_command_hides() {
        for page in [
            "    plimsoll plan a.toml\n",
            "    $ ls\n",
            "```text\n$ ls\n```\n",
            "```\n$ ls\n```\n",
            "```fish\nls\n```\n",
            "```console\nls\n```\n",
            "```console no-run=tired\n$ ls\n```\n",
            "```console norun=gpu\n$ ls\n```\n",
            "```console\n$ ls\n",
        ] {
            assert!(!blocks(page).1.is_empty(), "{page:?}");
        }
    }

    #[test]
    fn commands_in_a_sentence() {
        let page = "run `plimsoll plan RUN` or `ls`\n```\n`plimsoll no`\n```\nand `plimsoll x`\n";
        assert_eq!(spans(page), [(1, "plimsoll plan RUN".to_string()), (5, "plimsoll x".to_string())]);
    }
}
