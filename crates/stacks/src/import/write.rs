//! Writes a draft as the text of a run file, with remarks as comments at its end.

use super::draft::{Draft, Entry, Fate, Line};
use crate::setting::Setting;

/// A run file made from another stack's file.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The run file, with the remarks as comments at its end.
    pub run_file: String,
    /// What was changed, chosen or left out, one line each.
    pub remarks: Vec<String>,
}

const SECTIONS: [&str; 11] = [
    "",
    "model_options",
    "data",
    "rollout",
    "loss",
    "critic",
    "train",
    "memory",
    "eval",
    "checkpoint",
    "run",
];

impl Draft {
    /// Writes the run file; `file` is the name of the launch file.
    pub fn finish(self, file: &str) -> Imported {
        let title = self.import.title;
        // A line break in a name would end the comment.
        let mut text = format!("# Imported from {title}: {}\n", one_line(file));
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
        let carried = |entry: &&Entry| matches!(entry.fate, Fate::Carried) && !entry.is_default;
        let unnamed: Vec<String> = self
            .entries
            .iter()
            .filter(carried)
            .filter(|entry| !text.contains(&one_line(&entry.given.key)))
            .map(|entry| shown(&entry.given))
            .collect();
        if !unnamed.is_empty() {
            text += "\n# Taken into account, or the same here without a key:\n";
            unnamed.iter().for_each(|setting| text += &format!("#   {setting}\n"));
        }
        Imported { run_file: text, remarks }
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
        let mut remarks: Vec<String> = self.chosen.iter().map(|what| format!("chosen: {what}")).collect();
        for entry in self.entries.iter().filter(|entry| !entry.is_default) {
            if let Fate::Changed(how) = &entry.fate {
                remarks.push(format!("changed: {}: {how}", shown(&entry.given)));
            }
        }
        for entry in self.entries.iter().filter(|entry| !entry.is_default) {
            match &entry.fate {
                Fate::Left(why) => remarks.push(format!("left out: {}: {why}", shown(&entry.given))),
                Fate::Pending => remarks.push(format!("left out: {}: has no use here", shown(&entry.given))),
                Fate::Carried | Fate::Changed(_) => {}
            }
        }
        remarks
    }
}

fn shown(given: &Setting) -> String {
    match given.value.is_empty() {
        true => one_line(&given.key),
        false => format!("{} = {}", one_line(&given.key), one_line(&given.value)),
    }
}

/// Text for a comment: control characters, line breaks among them, as spaces, at most 160 characters.
pub(super) fn one_line(text: &str) -> String {
    text.chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
