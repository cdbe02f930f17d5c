//! Numbers of pages: `cargo xtask pages` writes those that this build prints into the blocks whose numbers vary, and
//! the test of the commands compares the planned amounts of memory, which hardly depend on the machine.

use super::agree::{ANY, best_match};
use super::shell::repository;
use regex::Regex;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::LazyLock;

/// Planned amounts may differ by this much: the binary's size and the threads depend on build and machine.
const SLACK_BYTES: f64 = 8.0 * MIB;
const SLACK_SHARE: f64 = 0.03;
/// The page that shows the row of the binary's image.
const IMAGE_PAGE: &str = "docs/memory.md";
const MIB: f64 = (1u64 << 20) as f64;

/// Returns the shown lines with the numbers of the output; a line that is not found stays as it is.
pub fn rewritten(shown: &[String], output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    let mut at = 0;
    let each = shown.iter().map(|line| {
        if line.trim() == ANY.to_string() {
            return line.clone();
        }
        let Some(found) = best_match(line, &lines[at..]) else { return line.clone() };
        let new = filled(line, lines[at + found]);
        at += found + 1;
        new.unwrap_or_else(|| line.clone())
    });
    each.collect()
}

/// Returns a shown line with the words of a line of the output; `…` stays.
fn filled(shown: &str, line: &str) -> Option<String> {
    let mut pattern = String::from("^");
    let parts: Vec<&str> = shown.trim_end().split(ANY).collect();
    for (index, part) in parts.iter().enumerate() {
        pattern += if index == 0 { "(" } else { ".*?(" };
        pattern += &form(part);
        pattern += ")";
    }
    let found = Regex::new(&(pattern + "$")).ok()?.captures(line.trim_end())?;
    let words: Vec<&str> = found.iter().skip(1).flatten().map(|part| part.as_str()).collect();
    Some(words.join(&ANY.to_string()))
}

/// Returns the pattern of a text in which numbers, sparklines and the width of columns are free.
fn form(part: &str) -> String {
    let token = Regex::new(r" *-?[0-9](?:[0-9.]*[0-9])?|[▁-█]+| +").expect("it is a pattern");
    let (mut out, mut end) = (String::new(), 0);
    for found in token.find_iter(part) {
        out += &regex::escape(&part[end..found.start()]);
        let text = found.as_str();
        out += match text.trim_start().chars().next() {
            None => " +",
            Some('▁'..='█') => "[▁-█]+",
            Some(_) if text.starts_with(' ') => " +-?[0-9](?:[0-9.]*[0-9])?",
            Some(_) => "-?[0-9](?:[0-9.]*[0-9])?",
        };
        end = found.end();
    }
    out + &regex::escape(&part[end..])
}

/// Returns the code spans of a page that quote an amount of memory from its blocks with other numbers, and what they
/// should be. `shown`: the output of blocks whose numbers vary.
pub fn misquoted(page: &str, shown: &[String]) -> Vec<(String, String)> {
    let unit = Regex::new("[0-9] (KiB|MiB|GiB)").expect("it is a pattern");
    let mut found = Vec::new();
    let mut is_fenced = false;
    for line in page.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        let spans = line.split('`').skip(1).step_by(2);
        for span in spans.filter(|span| !is_fenced && unit.is_match(span)) {
            let quoted = Regex::new(&form(span)).expect("an escaped text is a pattern");
            let now = shown.iter().find_map(|line| quoted.find(line)).map(|found| found.as_str().to_string());
            let is_shown = shown.iter().any(|line| line.contains(span));
            found.extend(now.filter(|_| !is_shown).map(|now| (span.to_string(), now)));
        }
    }
    found
}

/// Returns the planned amounts in a text, each with the words that say what it is, in bytes.
pub fn planned(text: &str) -> Vec<(String, f64)> {
    let amount = r"([0-9.]+) (B|KiB|MiB|GiB|TiB)";
    let whole = Regex::new(&format!(r"{amount} planned")).expect("it is a pattern");
    let peak =
        Regex::new(&format!(r"(host|device): peak {amount} in (\w+), resident {amount}")).expect("it is one");
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(part) = whole.captures(line) {
            found.push(("host".to_string(), bytes(&part[1], &part[2])));
        }
        if let Some(part) = peak.captures(line) {
            found.push((part[1].to_string(), bytes(&part[2], &part[3])));
            found.push((format!("{} resident", &part[1]), bytes(&part[5], &part[6])));
        }
    }
    found
}

pub fn bytes(number: &str, unit: &str) -> f64 {
    let power = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|known| *known == unit).unwrap_or(0);
    number.parse::<f64>().unwrap_or(f64::NAN) * 1024f64.powi(power as i32)
}

/// True if a planned amount is what it was when the page was written, as far as builds and machines allow.
pub fn is_near(shown: f64, now: f64) -> bool {
    // From a GiB on, a page has amounts to a tenth of one.
    let rounding = if shown.min(now) >= 1024.0 * MIB { 51.2 * MIB } else { 0.0 };
    (shown - now).abs() <= rounding + SLACK_BYTES.max(SLACK_SHARE * now)
}

/// Returns the bytes by which an amount is larger in this build than on its page: host memory holds the binary's image.
pub fn growth(name: &str) -> f64 {
    if name.starts_with("device") || name == "limit" { 0.0 } else { *IMAGE_GROWTH }
}

/// Bytes by which the image of the binary under test is larger than the one on `IMAGE_PAGE`: that of an optimized
/// build.
static IMAGE_GROWTH: LazyLock<f64> = LazyLock::new(|| {
    let row = Regex::new(r"process\.image +([0-9.]+) (B|KiB|MiB|GiB)").expect("it is a pattern");
    let image = |text: &str| row.captures(text).map(|part| bytes(&part[1], &part[2]));
    let page = fs::read_to_string(repository().join(IMAGE_PAGE)).expect("a page");
    let plan = ["plan", "runs/first.toml", "--json"];
    let now = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(plan).current_dir(repository()).output();
    let now: Value = serde_json::from_slice(&now.expect("the binary").stdout).expect("a plan");
    let regions = now["regions"].as_array().expect("regions").iter();
    let row =
        regions.filter(|row| row["name"] == "process.image").filter_map(|row| row["bytes"].as_f64()).next();
    row.expect("the image's row") - image(&page).expect("the image on the page")
});

/// Returns what is stale: planned amounts of a page that a plan does not give any more.
pub fn stale(shown: &[String], plan: &str, growth: impl Fn(&str) -> f64) -> Option<String> {
    let now = planned(plan);
    let mut words = String::new();
    for (name, then) in planned(&shown.join("\n")) {
        let same = now.iter().filter(|(known, _)| *known == name);
        if same.clone().next().is_some() && !same.clone().any(|(_, now)| is_near(then + growth(&name), *now))
        {
            let now = same.map(|(_, now)| format!("{:.1}", now / MIB)).collect::<Vec<_>>().join(" or ");
            write!(words, "{name} {:.1} MiB is {now} now; ", then / MIB).expect("a string grows");
        }
    }
    (!words.is_empty()).then(|| format!("{words}run `cargo xtask pages`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_output_and_the_rest_is_the_page() {
        let output = "grpo on x, avx; 105.1 MiB planned of 9.8 GiB\nstep 1/200  reward 0.1  ▁  of 9 s\nstep 20/200  reward  -0.5  ▁▂  of 3 s\nend 7";
        let shown: Vec<String> = [
            "grpo on x, …; 98.8 MiB planned of 22.8 GiB",
            "…",
            "step 20/200  reward 0.730  ▁▇▇  …",
            "none 3",
        ]
        .map(String::from)
        .to_vec();
        let expect =
            ["grpo on x, …; 105.1 MiB planned of 9.8 GiB", "…", "step 20/200  reward  -0.5  ▁▂  …", "none 3"];
        assert_eq!(rewritten(&shown, output), expect);
    }

    #[test]
    fn a_sentence_that_quotes_a_block_has_its_numbers() {
        let shown = ["x; 110.0 MiB planned of 22.4 GiB; y".to_string()];
        let page = "* `98.8 MiB planned of 22.8 GiB` and `5 MiB left`\n```console\n`1.0 MiB planned of 2.0 GiB`\n```\n";
        let expect =
            ("98.8 MiB planned of 22.8 GiB".to_string(), "110.0 MiB planned of 22.4 GiB".to_string());
        assert_eq!(misquoted(page, &shown), [expect]);
        assert_eq!(misquoted("`110.0 MiB planned of 22.4 GiB`", &shown), []);
    }

    #[test]
    fn a_plan_that_moved_makes_a_page_stale() {
        let shown = ["host: peak 67.5 MiB in update, resident 53.5 MiB; limit 48.0 MiB".to_string()];
        let now =
            |peak: f64| format!("host: peak {peak:.1} MiB in update, resident 55.0 MiB; limit 48.0 MiB\n");
        assert_eq!(stale(&shown, &now(71.0), |_| 0.0), None);
        assert!(
            stale(&shown, &now(80.0), |_| 0.0).is_some_and(|words| words.contains("67.5 MiB is 80.0 now"))
        );
        let title = ["grpo; 98.8 MiB planned of 22.8 GiB".to_string()];
        assert!(
            stale(&title, &now(121.3), |_| 0.0).is_some() && stale(&title, &now(100.0), |_| 0.0).is_none()
        );
    }
}
