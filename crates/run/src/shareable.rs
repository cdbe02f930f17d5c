//! The run file as others may see it, trackers and readers of a repository: without `[track]`, keys and passwords.

use plimsoll_base::{WITHHELD, is_key, is_name_of_secret};
use toml::{Table, Value};

/// Returns a run file without `[track]`, without what has the name of a secret or begins as a well-known key, and with
/// addresses without users, passwords and queries; `None` if it is no TOML.
pub(crate) fn shareable(run_file: &str) -> Option<Table> {
    let mut table = run_file.parse::<Table>().ok()?;
    table.remove("track");
    clean_table(&mut table);
    Some(table)
}

/// Calls `change` with every text of a table.
pub(crate) fn each_text(table: &mut Table, change: &dyn Fn(&mut String)) {
    fn each(value: &mut Value, change: &dyn Fn(&mut String)) {
        match value {
            Value::String(text) => change(text),
            Value::Array(list) => list.iter_mut().for_each(|value| each(value, change)),
            Value::Table(table) => each_text(table, change),
            _ => {}
        }
    }
    table.iter_mut().for_each(|(_, value)| each(value, change));
}

fn clean_table(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        match value {
            Value::Integer(_) | Value::Float(_) => {}
            value if is_name_of_secret(key) => *value = WITHHELD.into(),
            value => clean(value),
        }
    }
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = cleaned(text),
        Value::Array(list) => clean_list(list),
        Value::Table(table) => clean_table(table),
        _ => {}
    }
}

/// Cleans a list, which may be the words of a command: `--api-key KEY`, `--api-key=KEY`, `API_KEY=KEY`.
fn clean_list(list: &mut [Value]) {
    let mut follows_name = false;
    for value in list {
        clean(value);
        let Value::String(text) = value else { continue };
        if std::mem::take(&mut follows_name) {
            *text = WITHHELD.into();
            continue;
        }
        follows_name = text.starts_with('-') && !text.contains(['=', ' ']) && is_name_of_secret(text);
        *text = each_word(text, &|word| match word.split_once('=') {
            Some((name, _)) if is_name_of_secret(name) => format!("{name}={WITHHELD}"),
            _ => word.to_string(),
        });
    }
}

/// Returns text whose addresses have neither users, passwords nor queries, without well-known keys.
fn cleaned(text: &str) -> String {
    each_word(text, &|word| match word.contains("://") {
        true => without_user(word).split('?').next().unwrap_or_default().to_string(),
        false if is_key(word) => WITHHELD.to_string(),
        false => word.to_string(),
    })
}

fn each_word(text: &str, change: &dyn Fn(&str) -> String) -> String {
    let piece = |piece: &str| {
        let word = piece.trim_end_matches(char::is_whitespace);
        change(word) + &piece[word.len()..]
    };
    text.split_inclusive(char::is_whitespace).map(piece).collect()
}

/// Returns `http://host/path` for `http://user:password@host/path`.
fn without_user(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    format!("{scheme}://{host}{}", &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_file_is_shared_without_its_secrets() {
        let text = "model = \"hf:o/m\"\n[data]\nsystem_prompt = \"See http://a:k0@h/x?y=k1 first. Why? Say.\"\n\
                    [environment]\nenv = \"openenv:http://me:k2@host:80/x?key=k3\"\n\
                    command = [\"sh\", \"--api-key\", \"k4\", \"--token=k5\", \"-c\", \"HF_TOKEN=k6 run hf_0123456789abcdefk7\"]\n\
                    [environment.env_options]\napi_key = \"k8\"\nhf_token = \"k9\"\nmax_tokens = 5\n\
                    [[reward]]\nkind = \"https://u:k10@host/score?token=k11\"\n[track]\nproject = \"k12\"\n";
        let mut shared = shareable(text).expect("it is TOML");
        let shown = shared.to_string();
        for n in 0..=12 {
            assert!(!shown.contains(&format!("k{n}")), "k{n}: {shown}");
        }
        assert_eq!(shared["data"]["system_prompt"].as_str(), Some("See http://h/x first. Why? Say."));
        let command = shared["environment"]["command"].as_array().expect("a list");
        assert_eq!((command[0].as_str(), command[4].as_str()), (Some("sh"), Some("-c")));
        assert_eq!(shared["environment"]["env_options"]["max_tokens"].as_integer(), Some(5));
        assert_eq!(shared["reward"][0]["kind"].as_str(), Some("https://host/score"));
        assert!(!shared.contains_key("track") && shareable("not = = toml").is_none());
        each_text(&mut shared, &|text| *text = text.replace("host", "there"));
        assert_eq!(shared["reward"][0]["kind"].as_str(), Some("https://there/score"));
    }

    #[test]
    fn names_and_passwords_of_addresses_are_left_out() {
        for (text, expect) in [
            ("http://host/score", "http://host/score"),
            ("http://user:pass@host:80/score?a=b@c", "http://host:80/score?a=b@c"),
            ("https://token@host", "https://host"),
            ("a@b", "a@b"),
        ] {
            assert_eq!(without_user(text), expect);
        }
    }
}
