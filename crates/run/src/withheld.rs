//! Keeps keys and passwords of a run file out of the run directory and its checkpoints, which people pass on. Marks are
//! in their place; a resume fills them from the user's own run file, and compares them by their tags.
//!
//! Describes what is a secret is what `plimsoll_base::without_secrets` says, as for files that are published.

use crate::shareable::clean_table;
use plimsoll_base::{WITHHELD, unmarked, withheld, without_secrets};
use plimsoll_config::RunFile;
use plimsoll_files::digest;
use toml::{Table, Value};

/// Returns the text of a run file for a run directory: marks in place of secrets.
pub fn to_toml(run: &RunFile) -> String {
    let text = run.to_toml();
    let Ok(table) = text.parse::<Table>() else { return text };
    let marked = mark(&table);
    // A file without secrets stays as it is to the byte.
    if marked == table { text } else { marked.to_string() }
}

/// Returns a run file with marks in place of secrets. What is marked already stays.
pub(crate) fn marked(run: &RunFile) -> RunFile {
    let Ok(table) = Table::try_from(run) else { return run.clone() };
    Value::Table(mark(&table)).try_into().unwrap_or_else(|_| run.clone())
}

/// Puts the secrets of `own` into `run` where it has the same marks as `own` has when it is marked.
pub(crate) fn fill(run: &RunFile, own: &RunFile) -> RunFile {
    let form = "every value of a run file has a form in TOML";
    let (mut table, own) = (Table::try_from(run).expect(form), Table::try_from(own).expect(form));
    fill_table(&mut table, &mark(&own), &own);
    Value::Table(table).try_into().expect("values of two run files make a run file")
}

/// Returns the first key that still has a mark.
pub(crate) fn first_mark(run: &RunFile) -> Option<String> {
    let mut found = None;
    run.visit(&mut |key, value| {
        if found.is_none() && has_mark(value) {
            found = Some(key.to_string());
        }
    });
    found
}

fn has_mark(value: &Value) -> bool {
    match value {
        Value::String(text) => unmarked(text).is_some(),
        Value::Array(list) => list.iter().any(has_mark),
        Value::Table(table) => table.iter().any(|(key, value)| unmarked(key).is_some() || has_mark(value)),
        _ => false,
    }
}

fn mark(table: &Table) -> Table {
    let mut clean = table.clone();
    clean_table(&mut clean);
    mark_table(table, &clean)
}

fn mark_table(table: &Table, clean: &Table) -> Table {
    let of = |(key, value): (&String, &Value)| {
        let value =
            clean.get(&without_secrets(key)).map_or_else(|| value.clone(), |clean| mark_value(value, clean));
        (mark_key(key), value)
    };
    table.iter().map(of).collect()
}

fn mark_key(key: &str) -> String {
    let clean = without_secrets(key);
    if clean == key || unmarked(key).is_some() {
        key.to_string()
    } else {
        withheld(&clean, &digest(key.as_bytes()))
    }
}

/// Marks a value, of which `clean` is the one without secrets.
fn mark_value(value: &Value, clean: &Value) -> Value {
    let mark = |clean: &str| Value::String(withheld(clean, &digest(value.to_string().as_bytes())));
    match (value, clean) {
        (Value::Table(table), Value::Table(clean)) => Value::Table(mark_table(table, clean)),
        (Value::Array(list), Value::Array(clean)) if list.len() == clean.len() => {
            Value::Array(list.iter().zip(clean).map(|(value, clean)| mark_value(value, clean)).collect())
        }
        (Value::String(text), _) if unmarked(text).is_some() => value.clone(),
        (Value::String(text), Value::String(clean)) if has_secret(text, clean) => mark(clean),
        (value, clean) if value == clean || matches!(value, Value::String(_)) => value.clone(),
        (_, clean) => mark(clean.as_str().unwrap_or(WITHHELD)),
    }
}

/// Returns true if what `clean` lacks of `text` is a secret. The query of an address that a prompt mentions is none.
fn has_secret(text: &str, clean: &str) -> bool {
    let has_user = |word: &str| word.find("://").is_some_and(|at| word[at..].contains('@'));
    let is_one_word = !text.trim().contains(char::is_whitespace);
    text != clean
        && (is_one_word
            || clean.matches(WITHHELD).count() > text.matches(WITHHELD).count()
            || text.split_whitespace().any(has_user))
}

fn fill_table(table: &mut Table, marked: &Table, own: &Table) {
    for (key, value) in own {
        let name = mark_key(key);
        let Some(of) = marked.get(&name) else { continue };
        if name == *key {
            if let Some(into) = table.get_mut(key) {
                fill_value(into, of, value);
            }
        } else if let Some(mut into) = table.remove(&name) {
            fill_value(&mut into, of, value);
            table.insert(key.clone(), into);
        }
    }
}

fn fill_value(into: &mut Value, marked: &Value, own: &Value) {
    match (into, marked, own) {
        (Value::Table(table), Value::Table(marked), Value::Table(own)) => fill_table(table, marked, own),
        (Value::Array(list), Value::Array(marked), Value::Array(own)) if list.len() == own.len() => {
            list.iter_mut()
                .zip(marked.iter().zip(own))
                .for_each(|(into, (of, own))| fill_value(into, of, own));
        }
        (into, marked, own) if into == marked => *into = own.clone(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shareable::without_marks;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn run(text: &str) -> RunFile {
        toml::from_str(&format!(
            "method = \"grpo\"\nmodel = \"hf:o/m\"\n{text}\n[train]\nsteps = 3\nlearning_rate = 1e-6\n"
        ))
        .expect("a run file")
    }

    /// Keys of a run file were copied into the run directory and every checkpoint.
    #[test]
    fn r_keys_were_copied_into_the_run_directory() {
        let own = run("[[reward]]\nkind = \"http://u:k1x@h/score?token=k2x\"\n\
             [[reward]]\nkind = \"command:python3 g.py --openai-key k3x --max-tokens 5\"\n\
             [[reward]]\nkind = \"exact\"\n\
             [environment]\nenv = \"gym:x\"\n\
             [environment.env_options]\napi_key = \"k4x\"\npin_key = 123456\nsize = 5\n\
             headers = [[\"Authorization\", \"k5x\"]]\n\"sk-k6xabcdefghijklmnopqrst\" = 1\n");
        let text = to_toml(&own);
        for n in 1..=6 {
            assert!(!text.contains(&format!("k{n}x")), "k{n}x: {text}");
        }
        assert!(!text.contains("123456") && text.contains("--max-tokens 5"), "{text}");
        let kept: RunFile = toml::from_str(&text).expect("it is a run file");
        assert_eq!((&kept, &marked(&own)), (&marked(&kept), &kept), "marks are stable");
        assert!(first_mark(&kept).is_some());
        let whole = fill(&kept, &own);
        assert_eq!((&whole, first_mark(&whole)), (&own, None));
        // Another key is another mark, and does not fill this one.
        let other = toml::from_str(&own.to_toml().replace("k4x", "k7x")).expect("a run file");
        assert_ne!(marked(&other), kept);
        assert!(first_mark(&fill(&kept, &other)).is_some());
        // For publishing, it is as if the secrets had been taken out just now.
        let (mut a, mut b) = (text.parse::<Table>().unwrap(), own.to_toml().parse::<Table>().unwrap());
        without_marks(&mut a);
        clean_table(&mut a);
        clean_table(&mut b);
        assert_eq!(a, b);
    }

    #[test]
    fn a_run_file_without_secrets_stays_as_it_is() {
        let own = run(&format!(
            "[model_options]\nrevision = \"{COMMIT}\"\n[data]\nprompts = \"hf:o/d@{COMMIT}/main/train\"\n\
             system_prompt = \"See https://h/x?y=1 first, and use <token>.\"\n[[reward]]\nkind = \"http://h:80/score\"\n\
             [[reward]]\nkind = \"python:rewards.py:score_of_everything\"\n"
        ));
        assert_eq!(to_toml(&own), own.to_toml());
        assert_eq!((first_mark(&own), marked(&own)), (None, own.clone()));
    }
}
