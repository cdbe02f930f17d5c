//! Runs every command of README.md and docs/ and compares its output with the page. What cannot run here says why in
//! its fence, is listed, and is parsed. CONTRIBUTING.md, "The docs", has the rules.

mod agree;
mod blocks;
mod numbers;
mod pictures;
mod shell;

use agree::first_difference;
use blocks::{Block, REASONS, Shown, blocks, spans};
use shell::{Shell, ours, repository};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// The page of the table of settings that do not go together; a test of `config` compares it.
const CONFLICTS: &str = "docs/details/conflicts.md";

/// The page of the families; a test of `arch` compares its table.
const MODELS: &str = "docs/models.md";

/// A page: its path from the root, and its text.
type Page = (String, String);

/// README.md, then the book in the order of its pages: a page may go on from what an earlier one left.
fn pages() -> Vec<Page> {
    let summary = read("docs/SUMMARY.md");
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let book = links.filter(|link| link.ends_with(".md")).map(|link| format!("docs/{link}"));
    ["README.md".to_string()].into_iter().chain(book).map(|path| (path.clone(), read(&path))).collect()
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(repository().join(path));
    text.unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Returns what a test found, all at once.
fn none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_command_runs_and_prints_what_its_page_shows() {
    let mut shell = Shell::new();
    let (mut faults, mut left_out) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for (path, text) in pages() {
        let (blocks, wrong) = blocks(&text);
        faults.extend(wrong.iter().map(|fault| format!("{path}:{fault}")));
        for block in blocks {
            let at = format!("{path}:{}", block.line);
            if let Some(name) = &block.file {
                let written = shell.write(name, &(block.text.join("\n") + "\n"));
                faults.extend(written.err().map(|why| format!("{at}: {why}")));
            }
            let commands = block.commands();
            for (index, shown) in commands.iter().enumerate() {
                let exit = if index + 1 == commands.len() { block.exit } else { 0 };
                let result = match &block.no_run {
                    None => run(&mut shell, &block, shown, exit),
                    Some(reason) => {
                        left_out.entry(reason.clone()).or_default().push(format!("{at}: {}", shown.command));
                        only_parse(&mut shell, reason, &shown.command)
                    }
                };
                faults.extend(result.err().map(|why| format!("{at}: `{}`: {why}", shown.command)));
            }
        }
    }
    for (reason, commands) in &left_out {
        let words = REASONS.iter().find(|(known, _)| known == reason).map_or("", |(_, words)| words);
        eprintln!("not run ({words}):\n  {}", commands.join("\n  "));
    }
    eprintln!("{}", shell.summary());
    none(&faults);
}

fn run(shell: &mut Shell, block: &Block, shown: &Shown, exit: i32) -> Result<(), String> {
    let (code, output) = shell.run(&with(shown, &block.with)?);
    if code != exit {
        return Err(format!("exit code {code}, not {exit}\n{output}"));
    }
    if let Some(line) = first_difference(&shown.output, &output, block.numbers_vary) {
        return Err(format!("shows `{line}`, which is not in its place in\n{output}"));
    }
    // Fewer steps and fewer evaluated prompts take the same memory.
    numbers::stale(&shown.output, &output, numbers::growth).filter(|_| block.numbers_vary).map_or(Ok(()), Err)
}

/// Returns a command of a page with the keys that make it short.
fn with(shown: &Shown, keys: &[String]) -> Result<String, String> {
    match ours(&shown.command) {
        Some(of_ours) => {
            let is_run =
                ["plimsoll train ", "plimsoll collect "].iter().any(|verb| of_ours.starts_with(verb));
            let sets = keys.iter().filter(|_| is_run).map(|set| format!(" --set {set}"));
            let short: String = [of_ours.clone()].into_iter().chain(sets).collect();
            let whole = shown.command.replace("cargo run --release --", "plimsoll");
            Ok(whole.replacen(&of_ours, &short, 1))
        }
        None if shown.command.starts_with("cargo ") || shown.command.starts_with("pip ") => {
            Err("say no-run=tools".into())
        }
        None => Ok(shown.command.clone()),
    }
}

/// Writes the numbers of this build and machine into the pages, and redraws the pictures: `cargo xtask pages`. Takes
/// minutes: runs whose numbers are shown are not shortened.
#[test]
#[ignore = "it writes into docs/ and README.md: cargo xtask pages"]
fn pages_are_written() {
    let mut shell = Shell::new();
    for (path, text) in pages() {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        for block in blocks(&text).0 {
            if let Some(name) = &block.file {
                shell.write(name, &(block.text.join("\n") + "\n")).expect("a file in it");
            }
            if block.no_run.is_some() {
                continue;
            }
            let mut new = Vec::new();
            for shown in block.commands() {
                let keys: &[String] = if block.numbers_vary { &[] } else { &block.with };
                let (_, output) = shell.run(&with(&shown, keys).expect("a command that runs here"));
                new.extend(numbers::rewritten(&shown.output, &output));
            }
            if block.numbers_vary {
                // The commands themselves stay: only lines of output are replaced.
                for (index, line) in block.output_lines().zip(new) {
                    lines[block.line + index] = line;
                }
            }
        }
        let mut page = lines.join("\n") + "\n";
        for (old, new) in numbers::misquoted(&page, &varying(&page)) {
            page = page.replace(&format!("`{old}`"), &format!("`{new}`"));
        }
        fs::write(repository().join(&path), page).expect("a page that can be written");
    }
    pictures::draw(&mut shell);
    let (path, table) = (repository().join(CONFLICTS), plimsoll_config::conflicts_in_markdown());
    let page = read(CONFLICTS);
    let introduction = page.split("\n## ").next().expect("a page begins");
    fs::write(path, format!("{}\n{table}", introduction.trim_end())).expect("a page that can be written");
    write_models();
}

/// Writes the table of families.
fn write_models() {
    let page = read(MODELS);
    let (before, rest) = page.split_once("\n| family |").expect("a page with the table");
    let (_, after) = rest.split_once("|\n\n").expect("a page goes on after the table");
    let page = format!("{before}\n{}\n{after}", plimsoll_arch::families_in_markdown());
    fs::write(repository().join(MODELS), page).expect("a page that can be written");
}

/// Returns the output of a page's blocks whose numbers vary.
fn varying(page: &str) -> Vec<String> {
    let blocks = blocks(page).0.into_iter().filter(|block| block.numbers_vary);
    blocks.flat_map(|block| block.commands()).flat_map(|shown| shown.output).collect()
}

#[test]
fn sentences_quote_the_numbers_of_their_blocks() {
    let check = |(path, text): &(String, String)| {
        let wrong = numbers::misquoted(text, &varying(text));
        wrong
            .into_iter()
            .map(|(old, new)| format!("{path}: `{old}` is `{new}` in its block"))
            .collect::<Vec<_>>()
    };
    none(&pages().iter().flat_map(check).collect::<Vec<String>>());
}

#[test]
fn pictures_show_the_plan_of_the_first_run() {
    none(&pictures::faults(&mut Shell::new()));
}

fn only_parse(shell: &mut Shell, reason: &str, command: &str) -> Result<(), String> {
    let Some(command) = ours(command) else { return Ok(()) };
    shell.parse(&command)?;
    let run = command.strip_prefix("plimsoll train ").filter(|run| !run.contains("--resume"));
    if let (Some(run), "minutes") = (run, reason) {
        let (code, output) = shell.run(&format!("plimsoll plan {run} --limit host=64GiB,disk=1TiB"));
        if code != 0 {
            return Err(format!("planned instead: exit code {code}\n{output}"));
        }
    }
    Ok(())
}

#[test]
fn every_command_in_a_sentence_is_known() {
    let shell = Shell::new();
    let mut places = BTreeMap::<String, String>::new();
    for (path, text) in pages() {
        for (line, command) in spans(&text) {
            // `a|b` and `...` show a choice and a rest, which no parser takes; help is asked for without a command.
            if !["|", "...", "…", " --help", " --version"].iter().any(|mark| command.contains(mark)) {
                places.entry(command).or_insert(format!("{path}:{line}"));
            }
        }
    }
    assert!(places.len() > 20, "spans are found: {places:?}");
    let check = |(command, at): (&String, &String)| {
        let command = ours(command).expect("it begins with our name");
        shell.parse(&command).err().map(|why| format!("{at}: `{command}`: {why}"))
    };
    none(&places.iter().filter_map(check).collect::<Vec<String>>());
}

#[test]
fn python_of_the_docs_compiles() {
    let python = std::env::var("PLIMSOLL_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    if Command::new(&python).arg("--version").output().is_err() {
        eprintln!("skipped: {python} is not there");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut files = Vec::new();
    for (path, text) in pages() {
        for block in blocks(&text).0.into_iter().filter(|block| block.language == "python") {
            let name = format!("{}-{}.py", path.replace(['/', '.'], "-"), block.line);
            fs::write(folder.path().join(&name), block.text.join("\n") + "\n").expect("a file in it");
            files.push(name);
        }
    }
    assert!(files.len() > 3, "blocks are found: {files:?}");
    let compile = Command::new(&python).args(["-m", "py_compile"]).args(&files).current_dir(&folder).output();
    let compile = compile.expect("it started before");
    assert!(compile.status.success(), "{}", String::from_utf8_lossy(&compile.stderr));
}

/// `docs/notebooks.py` makes those of pages and runs every cell; `docs/notebook.py` makes the one of loop.py.
#[test]
fn notebooks_are_their_pages() {
    for script in ["docs/notebooks.py", "docs/notebook.py"] {
        let python = Command::new("python3").arg(repository().join(script)).arg("--check").output();
        let Ok(checked) = python else {
            eprintln!("not checked: notebooks, which need python3");
            return;
        };
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }
}

#[test]
fn run_files_that_pages_name_are_there() {
    let pages = pages();
    let is_made = |name: &str| {
        let ways = ["--output ", "> ", "file="];
        pages.iter().any(|(_, text)| ways.iter().any(|way| text.contains(&format!("{way}{name}"))))
    };
    // Error pages show runs that went wrong, of files that need not be there.
    for (path, text) in pages.iter().filter(|(path, _)| !path.starts_with("docs/errors/")) {
        for name in text.split(['`', ' ', '\n', '=']).filter(|word| word.starts_with("runs/")) {
            let name = name.trim_end_matches([',', '.', ';', ':', ')']);
            let is_file = name.ends_with(".toml") && !name.contains(['*', '{', 'N']);
            if is_file && !is_made(name) {
                assert!(repository().join(name).exists(), "{path} names {name}");
            }
        }
    }
}
