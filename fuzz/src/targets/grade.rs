//! Verifiers of a model's words: those that parse, JSON Schema and LaTeX, and all of them together, each in its
//! grader's thread with its stack.

use crate::mutate::Shape;
use crate::target::{Bounds, JSON_PIECES, Subject, Target, text};
use plimsoll_base::Result;
use plimsoll_reward::{Case, OnError, Prompt, RewardSpec, Rewards};
use serde_json::{Map, Value};
use std::sync::Arc;

pub(super) const SCHEMA: Target = Target {
    name: "json-schema",
    reads: "a JSON Schema and a response",
    shape: Shape::Text,
    bounds: Bounds::WORDS,
    pieces: &JSON_PIECES,
    open: || Box::new(Verifier::new(&["json-schema"], schema_corpus())),
};

pub(super) const LATEX: Target = Target {
    name: "latex",
    reads: "an answer in LaTeX and a ground truth",
    shape: Shape::Text,
    bounds: Bounds::WORDS,
    pieces: &[
        "\\boxed{",
        "\\frac",
        "\\sqrt",
        "\\left(",
        "\\right)",
        "\\text{",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\cup",
        "\\pm",
        "\\sum_{k=1}^{9}",
        "\\binom",
        "^{",
        "_{",
        "}",
        "{",
        "(",
        ")",
        "[",
        "]",
        "|",
        "$",
        "\\",
        "&",
        "!",
        "%",
        ",",
        "=",
        "<",
        "9999999999",
        "1e999",
        "-",
        "/",
        "*",
        "x",
        "½",
        "\u{202e}",
        "\u{0}",
    ],
    open: || Box::new(Verifier::new(&["math"], math_corpus())),
};

pub(super) const ALL: Target = Target {
    name: "grade",
    reads: "a response and a ground truth, by every verifier",
    shape: Shape::Text,
    bounds: Bounds::WORDS,
    pieces: &[
        "\\boxed{",
        "\\frac",
        "\\sqrt",
        "\\left(",
        "\\right)",
        "\\text{",
        "\\cup",
        "\\pm",
        "\\binom",
        "^{",
        "_{",
        "}",
        "{",
        "(",
        ")",
        "[",
        "]",
        "|",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\",
        "&",
        "\\\\",
        "!",
        "%",
        ",",
        ";",
        "=",
        "<",
        "9999999999",
        "1e999",
        "-",
        "/",
        "*",
        "x",
        "½",
        "é",
        "\u{202e}",
        "####",
        "<answer>",
        "</answer>",
        "```",
        "\u{0}",
        "{\"type\": ",
        "{\"$ref\": \"#\"}",
        "{\"anyOf\": [",
        "{\"items\": ",
        "{\"not\": ",
        "1e308",
        "\"a\": ",
        "{\"pattern\": \"(a+)+$\"}",
        "null",
        "{\"target\": 7, \"nums\": [3, 4]}",
    ],
    open: || {
        let mut corpus = math_corpus();
        corpus.extend(schema_corpus());
        corpus.push(b"<answer>3 + 4</answer>\0{\"target\": 7, \"nums\": [3, 4]}".to_vec());
        corpus.push(b"so it is\n#### 1,234\x001234".to_vec());
        let kinds = ["math", "gsm8k", "exact", "countdown", "json-schema", "format", "regex:^a.*b$"];
        Box::new(Verifier::new(&kinds, corpus))
    },
};

/// JSON Schemas, each with a response.
fn schema_corpus() -> Vec<Vec<u8>> {
    let schema = |schema: &str, response: &str| format!("{response}\0{schema}").into_bytes();
    vec![
        schema(
            "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
            "{\"a\":{}}",
        ),
        schema("{\"anyOf\":[{\"type\":\"integer\",\"minimum\":3},{\"enum\":[\"x\",null]}]}", "[1, 2]"),
        schema("{\"type\":\"array\",\"items\":{\"pattern\":\"^(a+)+$\"},\"uniqueItems\":true}", "[\"aaaa\"]"),
        schema(
            "{\"allOf\":[{\"not\":{\"const\":1}}],\"$defs\":{\"b\":{\"$ref\":\"#/$defs/b\"}}}",
            "```json\n1\n```",
        ),
    ]
}

fn math_corpus() -> Vec<Vec<u8>> {
    let cases = include_str!("../../../crates/reward/tests/math_cases.jsonl").lines();
    let pair = |case: &str| {
        let case: Value = serde_json::from_str(case).expect("a case is JSON");
        let [response, truth] =
            ["response", "ground_truth"].map(|name| case[name].as_str().unwrap_or("").to_string());
        format!("{response}\0{truth}").into_bytes()
    };
    cases.map(pair).collect()
}

struct Verifier {
    specs: Vec<RewardSpec>,
    rewards: Rewards,
    corpus: Vec<Vec<u8>>,
}

impl Verifier {
    /// One verifier ends with its error; of several, each gives no score where it fails, as the others still do.
    fn new(kinds: &[&str], corpus: Vec<Vec<u8>>) -> Verifier {
        let on_error = if kinds.len() == 1 { OnError::Stop } else { OnError::None };
        let spec = |kind: &&str| RewardSpec { on_error, ..RewardSpec::of_kind(*kind) };
        let specs: Vec<RewardSpec> = kinds.iter().map(spec).collect();
        Verifier { rewards: start(&specs), specs, corpus }
    }
}

impl Subject for Verifier {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    /// The input is a response, a zero byte, and a ground truth.
    fn read(&mut self, input: &[u8]) -> Result<()> {
        let text = text(input);
        let (response, truth) = text.split_once('\0').unwrap_or((&text, "1"));
        let columns = Map::from_iter([("ground_truth".to_string(), Value::from(truth))]);
        let prompt = Arc::new(Prompt { columns: columns.into(), ..Prompt::default() });
        let case = Case {
            prompt,
            response: response.into(),
            completion: None,
            response_ids: Vec::new(),
            max_new_tokens: 8,
            ended: true,
        };
        let scored = self.rewards.score(vec![case]).map(drop);
        if scored.is_err() {
            // An error ends a verifier, as it ends a run.
            self.rewards = start(&self.specs);
        }
        scored
    }
}

fn start(specs: &[RewardSpec]) -> Rewards {
    Rewards::new(specs).expect("the verifiers start")
}
