//! The run file without keys and passwords, for trackers, readers of a repository and the page of `watch`.

use plimsoll_base::{CommandWords, WITHHELD, is_name_of_secret, unmarked, without_secrets};
use toml::{Table, Value};

/// Most keys of a run file that are listed; a file has about 120.
const SETTINGS_MAX: usize = 400;
/// Longest value that is listed, in characters.
const VALUE_CHARS_MAX: usize = 200;

/// Returns a run file without `[track]`, secrets (see `plimsoll_base::without_secrets`) replaced; `None` if not TOML.
pub(crate) fn shareable(run_file: &str) -> Option<Table> {
    let mut table = run_file.parse::<Table>().ok()?;
    table.remove("track");
    without_marks(&mut table);
    clean_table(&mut table);
    Some(table)
}

/// Returns a run file for a page: without secrets; unchanged if it has none.
pub fn shown(run_file: &str) -> String {
    let Ok(table) = run_file.parse::<Table>() else { return without_secrets(run_file) };
    let mut clean = table.clone();
    clean_table(&mut clean);
    if clean == table { run_file.to_string() } else { clean.to_string() }
}

/// Returns the keys of a run file with their values as text, in the file's order and without secrets:
/// `("reward.0.kind", "exact")`. At most `SETTINGS_MAX`; values are cut after `VALUE_CHARS_MAX` characters.
pub fn settings(run_file: &str) -> Vec<(String, String)> {
    let Ok(mut table) = run_file.parse::<Table>() else { return Vec::new() };
    clean_table(&mut table);
    let mut found = Vec::new();
    settings_of("", &Value::Table(table), &mut found);
    found
}

fn settings_of(path: &str, value: &Value, found: &mut Vec<(String, String)>) {
    let below = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
    match value {
        _ if found.len() == SETTINGS_MAX => {}
        Value::Table(table) => table.iter().for_each(|(key, value)| settings_of(&below(key), value, found)),
        Value::Array(list) if list.iter().any(Value::is_table) => {
            list.iter().enumerate().for_each(|(i, value)| settings_of(&below(&i.to_string()), value, found));
        }
        value => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            found.push((path.to_string(), text.chars().take(VALUE_CHARS_MAX).collect()));
        }
    }
}

/// Calls `change` on every string of a table.
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

/// Takes the marks out of a table, so that it is as if its secrets had been taken out just now.
pub(crate) fn without_marks(table: &mut Table) {
    for (key, mut value) in std::mem::take(table) {
        unmark(&mut value);
        table.insert(unmarked(&key).map_or_else(|| key.clone(), str::to_string), value);
    }
}

fn unmark(value: &mut Value) {
    match value {
        Value::String(text) => *text = unmarked(text).unwrap_or(text).to_string(),
        Value::Array(list) => list.iter_mut().for_each(unmark),
        Value::Table(table) => without_marks(table),
        _ => {}
    }
}

/// Cleans the values of a table, and keys that are themselves secrets.
pub(crate) fn clean_table(table: &mut Table) {
    // `{ name = "Authorization", value = "..." }` splits it into two values.
    let is_named = ["name", "header", "key"].iter().any(|of| {
        table.get(*of).and_then(Value::as_str).is_some_and(is_name_of_secret) && table.contains_key("value")
    });
    for (key, mut value) in std::mem::take(table) {
        match &mut value {
            Value::Boolean(_) => {}
            held if is_name_of_secret(&key) || (is_named && key == "value") => *held = WITHHELD.into(),
            held => clean(held),
        }
        table.insert(without_secrets(&key), value);
    }
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = without_secrets(text),
        Value::Array(list) => clean_list(list),
        Value::Table(table) => clean_table(table),
        _ => {}
    }
}

/// Cleans a list, which may be the words of a command, or a name and its value.
fn clean_list(list: &mut [Value]) {
    if let [Value::String(name), value @ Value::String(_)] = list
        && is_name_of_secret(name)
    {
        *value = WITHHELD.into();
    }
    let mut words = CommandWords::default();
    for value in list {
        match value {
            Value::String(text) => *text = words.next(text),
            value => {
                if std::mem::take(&mut words).expects_secret() {
                    *value = WITHHELD.into()
                } else {
                    clean(value)
                }
            }
        }
    }
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
    fn settings_are_keys_with_whole_paths_and_without_secrets() {
        let text = "seed = 3\nnot_before = \"x\"\n[train]\nlearning_rate = 1e-4\nbetas = [0.9, 0.99]\n\
                    [[reward]]\nkind = \"command:g --api-key k1x\"\n[[reward]]\nkind = \"exact\"\n";
        let expect = [
            ("seed", "3"),
            ("not_before", "x"),
            ("train.learning_rate", "0.0001"),
            ("train.betas", "[0.9, 0.99]"),
            ("reward.0.kind", "command:g --api-key (not shown)"),
            ("reward.1.kind", "exact"),
        ];
        let got = settings(text);
        let got: Vec<(&str, &str)> = got.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(got, expect);
        let many: String =
            (0..2 * SETTINGS_MAX).map(|i| format!("k{i} = \"{}\"\n", "é".repeat(999))).collect();
        let many = settings(&many);
        assert_eq!((many.len(), many[0].1.chars().count()), (SETTINGS_MAX, VALUE_CHARS_MAX));
        assert!(settings("not = = toml").is_empty());
    }

    /// A command of one text was sent as it was; only lists were read as words.
    #[test]
    fn r_commands_as_text_were_shared_with_their_keys() {
        let text = "[[reward]]\nkind = \"command:python3 g.py --openai-key k1x --auth k2x --header Authorization:k3x \\\"--pat\\\" 'k4x k5x' OPENAI_KEY=k6x \
                    --bearer k7x --key k8x --pw k9x --max-tokens 5\"\n[environment]\ncommand = [\"g.py\", \"--password\", 123456]\n\
                    [environment.env_options]\npin_key = 123456\npad_token = 0\nheaders = [[\"Authorization\", \"k10x\"]]\n\
                    header = { name = \"X-Api-Key\", value = \"k11x\" }\n\"sk-k12xabcdefghijklmnopqrst\" = 1\nuse_auth = true\n\
                    auth = { user = \"me\", with = \"k13x\" }\n";
        let shared = shareable(text).expect("it is TOML");
        let shown = shared.to_string();
        for n in 1..=13 {
            assert!(!shown.contains(&format!("k{n}x")), "k{n}x: {shown}");
        }
        assert!(!shown.contains("123456"), "{shown}");
        let kind = shared["reward"][0]["kind"].as_str().expect("a text");
        assert!(kind.starts_with("command:python3 g.py --openai-key (not shown) --auth"), "{kind}");
        assert!(kind.ends_with("--pw (not shown) --max-tokens 5"), "{kind}");
        assert!(!self::shown(text).contains("k13x") && self::shown(text).contains("--max-tokens 5"));
        let plain = "steps = 5  # of 7\n[track]\nproject = \"sums\"\n";
        assert_eq!(self::shown(plain), plain);
        assert!(!self::shown("not = = toml, api_key = \"k14x\"").contains("k14x"));
        let options = &shared["environment"]["env_options"];
        assert_eq!((options["pad_token"].as_integer(), options["use_auth"].as_bool()), (Some(0), Some(true)));
    }
}
