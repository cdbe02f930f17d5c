//! Every command of README.md and docs/ is run, and what it prints is compared with what the page shows. What cannot run
//! here says why in its fence, is listed, and is parsed. CONTRIBUTING.md, "The docs", has the rules.

mod agree;
mod blocks;
mod shell;

use agree::first_difference;
use blocks::{Block, REASONS, Shown, blocks, spans};
use shell::{Shell, ours, repository};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

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

/// What a test found, all at once.
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
    let command = match ours(&shown.command) {
        Some(of_ours) => {
            let is_run =
                ["plimsoll train ", "plimsoll collect "].iter().any(|verb| of_ours.starts_with(verb));
            let sets = block.with.iter().filter(|_| is_run).map(|set| format!(" --set {set}"));
            let short: String = [of_ours.clone()].into_iter().chain(sets).collect();
            let whole = shown.command.replace("cargo run --release --", "plimsoll");
            whole.replacen(&of_ours, &short, 1)
        }
        None if shown.command.starts_with("cargo ") || shown.command.starts_with("pip ") => {
            return Err("say no-run=tools".into());
        }
        None => shown.command.clone(),
    };
    let (code, output) = shell.run(&command);
    if code != exit {
        return Err(format!("exit code {code}, not {exit}\n{output}"));
    }
    match first_difference(&shown.output, &output, block.numbers_vary) {
        Some(line) => Err(format!("shows `{line}`, which is not in its place in\n{output}")),
        None => Ok(()),
    }
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
