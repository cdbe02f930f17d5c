//! The pages of `docs/errors/`, embedded and sorted by slug, and their parts.

use plimsoll_doctor::log;
use plimsoll_doctor::machine::{Check, State};

pub const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.in"));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// An error of Plimsoll.
    Error,
    /// A failure class that `doctor --log` names.
    Log,
    /// A check of `doctor`.
    Machine,
}

impl Group {
    pub const ALL: [Group; 3] = [Group::Error, Group::Log, Group::Machine];

    /// Returns the group of a page. A page of both an error and a class, such as `disk-full`, counts as an error.
    pub fn of(slug: &str) -> Group {
        let is_error = page(slug).is_some_and(|page| page.contains(&format!("\nerror[{slug}]")));
        match slug {
            _ if is_error => Group::Error,
            _ if slug.starts_with("machine-") => Group::Machine,
            _ if log::classes().any(|class| class == slug) => Group::Log,
            _ => Group::Error,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Group::Error => "error",
            Group::Log => "log",
            Group::Machine => "machine",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Group::Error => "errors of plimsoll",
            Group::Log => "first causes that `plimsoll doctor --log` names",
            Group::Machine => "checks of `plimsoll doctor`",
        }
    }
}

pub fn page(slug: &str) -> Option<&'static str> {
    PAGES.binary_search_by_key(&slug, |(name, _)| name).ok().map(|at| PAGES[at].1)
}

pub fn summary(page: &str) -> String {
    let paragraph = page.lines().skip_while(|line| line.starts_with('#') || line.trim().is_empty());
    let text: Vec<&str> = paragraph.take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let text = text.join(" ");
    match text.find(". ") {
        Some(end) => text[..=end].to_string(),
        None => text,
    }
}

/// Returns the reasons in one line: section "Why it happens", or "Why it matters" of a check.
pub fn why(page: &str) -> String {
    let lines = section(page, "## Why it ").map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<&str>>().join(" ")
}

/// Returns the numbered steps under "What to do", in order.
pub fn remedies(page: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    for line in section(page, "## What to do") {
        let numbered = line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
        match (numbered, steps.last_mut()) {
            (Some((_, step)), _) => steps.push(step.trim().to_string()),
            (None, Some(last)) if !line.trim().is_empty() => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => {}
        }
    }
    steps
}

/// Formats a check: a problem with reason and remedy, a note with its remedy, others in one line.
pub fn check_row(check: &Check) -> String {
    let mut text = format!("{:<8} {:<28} {}\n", check.state.name(), check.slug, check.finding);
    let page = page(check.slug).unwrap_or_default();
    if check.state == State::Problem {
        text += &format!("         why: {}\n", why(page));
    }
    if check.state >= State::Note {
        let first = remedies(page).into_iter().next().unwrap_or_default();
        text += &format!("         do:  {first}\n");
    }
    text
}

/// Returns the steps that help a run of `frameworks`. A step that begins with "In NAME," is for logs that name it,
/// Plimsoll's settings are only for its own logs. `known`: all frameworks that logs may name.
pub fn remedies_for(page: &str, known: &[&str], frameworks: &[String]) -> Vec<String> {
    let helps = |step: &String| {
        let name = step.strip_prefix("In ").and_then(|rest| Some(rest.split_once(',')?.0));
        match name.filter(|name| known.contains(name)) {
            Some("Plimsoll") => frameworks.iter().any(|own| own == "Plimsoll"),
            Some(name) => frameworks.is_empty() || frameworks.iter().any(|own| own == name),
            None => true,
        }
    };
    remedies(page).into_iter().filter(helps).collect()
}

/// Returns the lines under the heading that begins with `heading`, up to the next one of its level.
fn section<'p>(page: &'p str, heading: &str) -> impl Iterator<Item = &'p str> {
    let lines = page.lines().skip_while(move |line| !line.starts_with(heading)).skip(1);
    lines.take_while(|line| !line.starts_with("## "))
}

/// Most pages that a search without a page of all words shows.
const NEAREST_MAX: usize = 8;

/// Holds what a search found: each page with its first line that holds a word.
pub struct Found {
    pub pages: Vec<(&'static str, &'static str)>,
    /// True if they hold all words; otherwise they hold some, the rarest and most of them first.
    pub hold_all: bool,
}

/// Finds pages with all words, ignoring case: matches in names first, then most matches. If no page has all of them,
/// finds those with the words that say most.
pub fn search(words: &[String]) -> Found {
    let words: Vec<String> =
        words.iter().flat_map(|word| word.split_whitespace()).map(str::to_lowercase).collect();
    let mut found: Vec<(usize, usize, &'static str, &'static str)> = Vec::new();
    for (slug, page) in PAGES {
        let text = page.to_lowercase();
        if words.is_empty() || !words.iter().all(|word| text.contains(word.as_str())) {
            continue;
        }
        let in_name = words.iter().filter(|word| slug.contains(word.as_str())).count();
        let count: usize = words.iter().map(|word| text.matches(word.as_str()).count()).sum();
        let holds = |line: &&str| words.iter().any(|word| line.to_lowercase().contains(word.as_str()));
        let line = page.lines().skip(1).find(holds).unwrap_or_default();
        found.push((in_name, count, slug, line.trim()));
    }
    found.sort_by(|a, b| (b.0, b.1, a.2).cmp(&(a.0, a.1, b.2)));
    if found.is_empty() {
        Found { pages: nearest(&words), hold_all: false }
    } else {
        Found { pages: found.into_iter().map(|(_, _, slug, line)| (slug, line)).collect(), hold_all: true }
    }
}

/// Returns the pages with the words that say most: those that few pages have.
fn nearest(words: &[String]) -> Vec<(&'static str, &'static str)> {
    let stems: Vec<String> = words.iter().map(|word| stem(word)).filter(|stem| !stem.is_empty()).collect();
    let pages: Vec<(&'static str, &'static str, Vec<String>)> =
        PAGES.iter().map(|(slug, page)| (*slug, *page, words_of(page))).collect();
    let weight = |stem: &String| {
        let holding = pages.iter().filter(|(_, _, own)| own.contains(stem)).count();
        if holding == 0 { 0.0 } else { (pages.len() as f64 / holding as f64).ln() }
    };
    let weights: Vec<f64> = stems.iter().map(weight).collect();
    let mut scored: Vec<(f64, &'static str, &'static str)> = pages
        .iter()
        .map(|(slug, page, own)| {
            let held = stems.iter().zip(&weights).filter(|(stem, _)| own.contains(stem));
            let in_name = |stem: &str| words_of(slug).iter().any(|word| word == stem);
            let score = held.map(|(stem, weight)| if in_name(stem) { 2.0 * weight } else { *weight }).sum();
            let holds = |line: &&str| words_of(line).iter().any(|word| stems.contains(word));
            (score, *slug, page.lines().skip(1).find(holds).unwrap_or_default().trim())
        })
        .collect();
    let best = scored.iter().map(|(score, _, _)| *score).fold(0.0, f64::max);
    // A page with half of what the best one has is about something else.
    scored.retain(|(score, _, _)| *score > 0.0 && *score > 0.6 * best);
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(NEAREST_MAX).map(|(_, slug, line)| (slug, line)).collect()
}

/// Returns the stems of a text's words.
fn words_of(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| stem(&word.to_lowercase())).collect()
}

/// Returns a word without the ends that say how it is used: `explodes` and `exploded` are one.
fn stem(word: &str) -> String {
    const KEPT_MIN: usize = 4;
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    let ends = ["ing", "ed", "es", "s", "e"];
    let shorter = ends.iter().filter_map(|end| word.strip_suffix(end)).find(|kept| kept.len() >= KEPT_MIN);
    shorter.unwrap_or(word).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_found_and_opens_with_its_slug() {
        for (slug, text) in PAGES {
            assert_eq!(page(slug), Some(*text));
            assert!(text.starts_with(&format!("# {slug}\n")), "{slug} opens with {:?}", text.lines().next());
            assert!(!summary(text).is_empty(), "{slug}");
        }
        assert_eq!(page("no-such-slug"), None);
    }

    #[test]
    fn pages_of_the_doctor_have_all_parts() {
        for (slug, text) in PAGES.iter().filter(|(slug, _)| Group::of(slug) != Group::Error) {
            assert!(!remedies(text).is_empty(), "{slug} has no numbered remedies");
            for part in ["\n## Example\n", "\n## What to do\n", "\n## What the fix costs\n"] {
                assert!(text.contains(part), "{slug} lacks {part:?}");
            }
        }
        for class in log::classes() {
            assert!(!page(class).map(remedies).unwrap_or_default().is_empty(), "{class}");
        }
    }

    #[test]
    fn words_of_a_symptom_find_its_page() {
        for (words, slug) in [
            ("reward always zero", "no-advantage"),
            ("reward does not move", "no-advantage"),
            ("kl explodes", "loss-exploded"),
            ("training diverges", "loss-exploded"),
            ("ratio is not one", "logprob-mismatch"),
            ("container killed oom", "container-oom-kill"),
        ] {
            let found = search(&[words.to_string()]);
            let first: Vec<&str> = found.pages.iter().take(3).map(|(slug, _)| *slug).collect();
            assert!(first.contains(&slug), "{words}: {first:?}");
        }
        assert!(search(&["qqqq".to_string()]).pages.is_empty());
        assert_eq!(stem("explodes"), stem("exploded"));
    }

    #[test]
    fn parts_of_a_page() {
        let page = "# a\n\nIt is full. Really.\n\n## Example\n\n## Why it happens\n\nBecause\nof b.\n\n## What to do\n\n1. Do this\n   and that.\n2. Or this.\n\n## What the fix costs\n\n1. no step\n";
        assert_eq!(summary(page), "It is full.");
        assert_eq!(why(page), "Because of b.");
        assert_eq!(remedies(page), ["Do this and that.", "Or this."]);
    }

    #[test]
    fn remedies_belong_to_the_framework_of_the_log() {
        let page = page("disk-full").expect("it has a page");
        let known: Vec<&str> = log::frameworks().collect();
        let has = |frameworks: &[&str], words: &str| {
            let named: Vec<String> = frameworks.iter().map(|name| name.to_string()).collect();
            remedies_for(page, &known, &named).iter().any(|step| step.contains(words))
        };
        assert!(has(&[], "--temp-dir") && has(&["Ray"], "--temp-dir") && !has(&["TRL"], "--temp-dir"));
        assert!(
            has(&["Plimsoll"], "checkpoint.keep")
                && !has(&["Ray"], "checkpoint.keep")
                && !has(&[], "run.dir")
        );
    }
}
