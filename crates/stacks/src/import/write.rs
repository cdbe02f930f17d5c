//! Writes a draft as the text of a run file, with remarks as comments at its end.

use super::draft::{Draft, Entry, Fate, Line};
use crate::setting::{TRAINER, one_line, printable};
use crate::table::why::{Class, class_of};
use crate::unbuilt;
use plimsoll_base::WITHHELD;

#[derive(Clone, Debug)]
pub struct Imported {
    /// The run file, with the remarks as comments at its end.
    pub run_file: String,
    /// Settings that are unbuilt, missing, chosen, changed or left out, one line each.
    pub remarks: Vec<String>,
}

/// Why a part of a value is missing.
const CUT: &str = "its value held a key, a password, or the user or the query of an address, which is not shown: write it yourself, or \
    give it to what reads it in a variable of the environment";

const SECTIONS: [&str; 15] = [
    "",
    "model_options",
    "data",
    "environment",
    "rollout",
    "async",
    "loss",
    "critic",
    "lora",
    "train",
    "memory",
    "eval",
    "checkpoint",
    "run",
    "track",
];

impl Draft {
    /// Writes the run file; `file` is the launch file's name, and `all` also lists what does not change the job.
    pub fn finish(self, file: &str, all: bool) -> Imported {
        let title = self.import.title;
        // A line break in a name would end the comment.
        let mut text = format!("# Imported from {title}: {}\n", one_line(file));
        let not_built = self.not_built().into_iter();
        let not_built: Vec<String> = not_built.map(|(what, given)| unbuilt::line(what, given)).collect();
        if !not_built.is_empty() {
            text += "# This is another job than there: --force left out what is not built here.\n";
            not_built.iter().for_each(|line| text += &format!("#   {line}\n"));
        }
        for section in SECTIONS {
            self.section(section, &mut text);
            if section == "rollout" {
                for (from, reward) in &self.rewards {
                    text += &format!("\n[[reward]]  # {}\n", one_line(from));
                    reward.iter().for_each(|(key, value)| text += &format!("{key} = {value}\n"));
                }
            }
        }
        let remarks = self.remarks(all);
        if !remarks.is_empty() {
            text += &format!("\n# What is not as it was in {}:\n", one_line(file));
            remarks.iter().for_each(|remark| text += &format!("#   {remark}\n"));
        }
        // Settings that set no key are named too, so every key of the launch file can be found.
        let is_named = |entry: &Entry| entry.given.key == TRAINER;
        let carried =
            |entry: &&Entry| matches!(entry.fate, Fate::Carried) && !entry.is_default && !is_named(entry);
        let is_unnamed = |entry: &&Entry| !text.contains(&one_line(&entry.given.key));
        let unnamed = self.entries.iter().filter(carried).filter(is_unnamed);
        let unnamed: Vec<String> = unnamed.map(|entry| entry.given.shown()).collect();
        if !unnamed.is_empty() {
            text += "\n# Taken into account, or the same here without a key:\n";
            unnamed.iter().for_each(|setting| text += &format!("#   {setting}\n"));
        }
        let not_built = not_built.iter().map(|line| format!("not built: {line}"));
        Imported { run_file: text, remarks: not_built.chain(remarks).collect() }
    }

    fn section(&self, section: &str, text: &mut String) {
        let of = |line: &&Line| line.key.rsplit_once('.').map_or("", |(head, _)| head) == section;
        let lines: Vec<&Line> = self.lines.iter().filter(of).collect();
        if lines.is_empty() {
            return;
        }
        if !section.is_empty() {
            *text += &format!("\n[{section}]\n");
        }
        for Line { key, value, from } in lines {
            let name = key.rsplit('.').next().unwrap_or_default();
            *text += &format!("{name} = {value}  # {}\n", one_line(from));
        }
    }

    /// Lists what is missing, changed, left out and chosen. Counts options of the engine or without effect, or lists
    /// `all`.
    fn remarks(&self, all: bool) -> Vec<String> {
        let mut remarks: Vec<String> = self.missing.iter().map(|what| format!("missing: {what}")).collect();
        let entries = || self.entries.iter().filter(|entry| !entry.is_default);
        for entry in entries() {
            if let Fate::Changed(how) = &entry.fate {
                remarks.push(format!("changed: {}: {how}", entry.given.shown()));
            }
        }
        let left: Vec<(Class, String)> = entries().filter_map(left_out).collect();
        let of = |class: Class| left.iter().filter(move |(own, _)| *own == class).map(|(_, line)| line);
        remarks.extend(of(Class::Job).cloned());
        remarks.extend(self.further.iter().cloned());
        if self.has_path_of_there() {
            let what = "paths with $HOME, ~ or $(...) are as the file writes them: set them for the machine that trains";
            remarks.push(format!("chosen: {what}"));
        }
        remarks.extend(self.chosen.iter().map(|what| format!("chosen: {what}")));
        if all {
            remarks.extend(of(Class::Engine).chain(of(Class::Idle)).cloned())
        } else {
            remarks.extend(counted(of(Class::Engine).count(), of(Class::Idle).count()))
        }
        remarks.iter().map(|remark| printable(remark)).collect()
    }

    fn has_path_of_there(&self) -> bool {
        let of_rewards = self.rewards.iter().flat_map(|(_, lines)| lines.iter().map(|(_, value)| value));
        let mut values = self.lines.iter().map(|line| &line.value).chain(of_rewards);
        values.any(|value| ["$HOME", "$(", "\"~/"].iter().any(|part| value.contains(part)))
    }
}

/// Returns the line of a setting that is left out in whole or in part.
fn left_out(entry: &Entry) -> Option<(Class, String)> {
    let line = |why: &str| format!("left out: {}: {why}", entry.given.shown());
    match &entry.fate {
        Fate::Left(why) => Some((class_of(why), line(why))),
        Fate::Pending => Some((Class::Job, line("this job has no use for it"))),
        Fate::Carried | Fate::Changed(_) => {
            let is_cut = entry.given.is_withheld && entry.given.value != WITHHELD;
            is_cut.then(|| (Class::Job, line(CUT)))
        }
        Fate::NotBuilt(_) => None,
    }
}

/// Returns one line for what does not change the job; `None` if there is nothing.
fn counted(engine: usize, idle: usize) -> Option<String> {
    let options = |count: usize| format!("{count} option{}", if count == 1 { "" } else { "s" });
    let what = match (engine, idle) {
        (0, 0) => return None,
        (engine, 0) => format!("{} of the engine there", options(engine)),
        (0, idle) => format!("{} off or at the default there", options(idle)),
        (engine, idle) => {
            format!("{} of the engine there, {idle} off or at the default there", options(engine))
        }
    };
    Some(format!("left out: {what} (--all lists them)"))
}
