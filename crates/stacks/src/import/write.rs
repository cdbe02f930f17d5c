//! Writes a draft as the text of a run file, with remarks as comments at its end.

use super::draft::{Draft, Entry, Fate, Line};
use crate::setting::{TRAINER, one_line, printable};
use crate::table::why;
use crate::unbuilt;
use plimsoll_base::WITHHELD;

#[derive(Clone, Debug)]
pub struct Imported {
    /// The run file, with the remarks as comments at its end.
    pub run_file: String,
    /// What is not built, missing, chosen, changed or left out, one line each.
    pub remarks: Vec<String>,
}

/// Why a part of a value is missing.
const CUT: &str = "its value held a key, a password, or the user or the query of an address, which is not shown: write it yourself, or \
    give it to what reads it in a variable of the environment";

const SECTIONS: [&str; 14] = [
    "",
    "model_options",
    "data",
    "environment",
    "rollout",
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
    /// Writes the run file; `file` is the name of the launch file.
    pub fn finish(self, file: &str) -> Imported {
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
        let remarks = self.remarks();
        if !remarks.is_empty() {
            text += &format!("\n# What is not as it was in {}:\n", one_line(file));
            remarks.iter().for_each(|remark| text += &format!("#   {remark}\n"));
        }
        // What set no key by itself is named too, so that every key of the launch file can be found.
        let is_named = |entry: &Entry| entry.given.key == TRAINER && entry.given.line == 0;
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

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.missing.iter().map(|what| format!("missing: {what}")).collect();
        let values = self.lines.iter().map(|line| &line.value);
        let mut values =
            values.chain(self.rewards.iter().flat_map(|(_, lines)| lines.iter().map(|(_, value)| value)));
        if values.any(|value| ["$HOME", "$(", "\"~/"].iter().any(|part| value.contains(part))) {
            let what = "paths with $HOME, ~ or $(...) are as the file writes them: set them for the machine that trains";
            remarks.push(format!("chosen: {what}"));
        }
        remarks.extend(self.chosen.iter().map(|what| format!("chosen: {what}")));
        for entry in self.entries.iter().filter(|entry| !entry.is_default) {
            if let Fate::Changed(how) = &entry.fate {
                remarks.push(format!("changed: {}: {how}", entry.given.shown()));
            }
        }
        let mut entries: Vec<&Entry> = self.entries.iter().filter(|entry| !entry.is_default).collect();
        // What a machine or an engine decides comes last: it hides what matters.
        entries.sort_by_key(|entry| matches!(&entry.fate, Fate::Left(why) if why::is_of_machine(why)));
        for entry in entries {
            match &entry.fate {
                Fate::Left(why) => remarks.push(format!("left out: {}: {why}", entry.given.shown())),
                Fate::Pending => {
                    remarks.push(format!("left out: {}: this job has no use for it", entry.given.shown()));
                }
                Fate::Carried | Fate::Changed(_)
                    if entry.given.is_withheld && entry.given.value != WITHHELD =>
                {
                    remarks.push(format!("left out: {}: {CUT}", entry.given.shown()));
                }
                Fate::Carried | Fate::Changed(_) | Fate::NotBuilt(_) => {}
            }
        }
        remarks.extend(self.further.iter().cloned());
        remarks.iter().map(|remark| printable(remark)).collect()
    }
}
