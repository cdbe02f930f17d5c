//! The pictures of the docs that show numbers: how they are drawn, and whether they still show what the plan says.

use super::numbers::{bytes, growth, is_near, planned};
use super::shell::{Shell, repository};
use regex::Regex;
use std::fs;
use std::process::Command;

/// Memory of one step of the first run, under a limit that leaves room for a line.
const PLAN: &str = "docs/plan.svg";
const PLAN_COMMAND: &str = "plimsoll plan runs/first.toml --limit";
/// The limit of an optimized build; another has as much next to its image.
const PLAN_LIMIT_KIB: f64 = 144.0 * 1024.0;
/// Accuracy of the first run, and its memory by phase.
const FIRST: &str = "docs/first.svg";
const FIRST_COMMAND: &str = "plimsoll train runs/first.toml";
const FIRST_DIR: &str = "runs/out/first";

/// Draws the pictures again, from a run that was made in the shell's folder or is made now.
pub fn draw(shell: &mut Shell) {
    let (code, output) = shell.run(&plan_command(0.0));
    assert_eq!(code, 0, "{output}");
    fs::copy(shell.path("plan.svg"), repository().join(PLAN)).expect("a picture that can be written");
    if !shell.path(FIRST_DIR).join("summary.json").is_file() {
        let (code, output) = shell.run(FIRST_COMMAND);
        assert_eq!(code, 0, "{output}");
    }
    let drawn = Command::new("python3")
        .arg(repository().join("docs/draw_run.py"))
        .args([shell.path(FIRST_DIR), repository().join(FIRST)])
        .status();
    assert!(drawn.is_ok_and(|status| status.success()), "docs/draw_run.py needs python3");
}

/// Returns the command that draws the plan, for a build whose image is `larger` by a number of bytes.
fn plan_command(larger: f64) -> String {
    let kib = (PLAN_LIMIT_KIB + larger / 1024.0).round();
    format!("{PLAN_COMMAND} host={kib}KiB,disk=1TiB --svg plan.svg")
}

/// Returns what the pictures show that is not so any more.
pub fn faults(shell: &mut Shell) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(repository().join(name)).expect("a picture");
    let (code, output) = shell.run(&plan_command(growth("host")));
    assert_eq!(code, 0, "{output}");
    let again = fs::read_to_string(shell.path("plan.svg")).expect("a picture");
    let mut faults = compare(PLAN, &amounts_of_plan(&read(PLAN)), &amounts_of_plan(&again));
    let first = read(FIRST);
    let now = phases(&output);
    faults.extend(compare(FIRST, &bars(&first), &now));
    // The last accuracy of the picture is that of the pages.
    let last = Regex::new(r">([0-9.]+)%</text><(?:text|rect|line)").expect("it is a pattern");
    let shown = last.captures_iter(&first).last().map(|part| part[1].to_string()).unwrap_or_default();
    let page = fs::read_to_string(repository().join("README.md")).expect("a page");
    let after = Regex::new(r"held-out +[0-9.]+ before, ([0-9.]+) after").expect("it is a pattern");
    let told = after.captures(&page).map(|part| part[1].parse::<f64>().unwrap_or(f64::NAN));
    if told.is_none_or(|told| (100.0 * told - shown.parse::<f64>().unwrap_or(f64::NAN)).abs() > 0.051) {
        faults.push(format!("{FIRST} ends at {shown} %, README.md at {told:?}"));
    }
    faults
}

/// Returns a fault for each amount that is only in one of two pictures, or that moved.
fn compare(picture: &str, shown: &[(String, f64)], now: &[(String, f64)]) -> Vec<String> {
    let names = |list: &[(String, f64)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if names(shown) != names(now) {
        let (shown, now) = (names(shown).join(", "), names(now).join(", "));
        return vec![format!("{picture} shows {shown}; now it is {now}: run `cargo xtask pages`")];
    }
    // The limit grows with the image.
    let grown = |name: &str| if name == "limit" { growth("host") } else { growth(name) };
    let moved = shown.iter().zip(now).filter(|((name, then), (_, now))| !is_near(then + grown(name), *now));
    let words = |((name, then), (_, now)): (&(String, f64), &(String, f64))| {
        format!("{picture} shows {name} {then:.0} B, it is {now:.0} now: run `cargo xtask pages`")
    };
    moved.map(words).collect()
}

/// Returns the amounts in the description of a drawn plan: resident, each phase, and the limit.
fn amounts_of_plan(svg: &str) -> Vec<(String, f64)> {
    let text = svg.split("<desc").nth(1).and_then(|rest| rest.split("</desc>").next()).unwrap_or_default();
    let amount = Regex::new(r"(\w+)(?: is)? ([0-9.]+) (B|KiB|MiB|GiB)").expect("it is a pattern");
    amount.captures_iter(text).map(|part| (part[1].to_string(), bytes(&part[2], &part[3]))).collect()
}

/// Returns resident memory and that of each phase, as `plan` prints them.
fn phases(output: &str) -> Vec<(String, f64)> {
    let resident = planned(output).into_iter().find(|(name, _)| name == "host resident");
    let line = output.lines().skip_while(|line| !line.starts_with("host: peak")).nth(1).unwrap_or_default();
    let amount = Regex::new(r"(\w+) ([0-9.]+) (B|KiB|MiB|GiB)").expect("it is a pattern");
    let each = amount.captures_iter(line).map(|part| (part[1].to_string(), bytes(&part[2], &part[3])));
    resident.into_iter().map(|(_, bytes)| ("resident".to_string(), bytes)).chain(each).collect()
}

/// Returns the bars of a drawn run but the measured one.
fn bars(svg: &str) -> Vec<(String, f64)> {
    let bar = Regex::new(r">([0-9.]+) (MiB)</text><text[^>]*>(\w+)</text>").expect("it is a pattern");
    let all = bar.captures_iter(svg).map(|part| (part[3].to_string(), bytes(&part[1], &part[2])));
    all.filter(|(name, _)| name != "measured").collect()
}
