//! Verifiers that parse: JSON Schema and LaTeX. `cargo xtask fuzz-grade` has all verifiers and stricter limits.

use crate::mutate::Shape;
use crate::target::{JSON_PIECES, Subject, Target, text};
use plimsoll_base::Result;
use plimsoll_reward::{Case, OnError, Prompt, RewardSpec, Rewards};
use serde_json::{Map, Value};
use std::sync::Arc;

pub(super) const SCHEMA: Target = Target {
    name: "json-schema",
    reads: "a JSON Schema and a response",
    shape: Shape::Text,
    pieces: &JSON_PIECES,
    open: || {
        let schema = |schema: &str, response: &str| format!("{response}\0{schema}").into_bytes();
        let corpus = vec![
            schema(
                "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
                "{\"a\":{}}",
            ),
            schema("{\"anyOf\":[{\"type\":\"integer\",\"minimum\":3},{\"enum\":[\"x\",null]}]}", "[1, 2]"),
            schema(
                "{\"type\":\"array\",\"items\":{\"pattern\":\"^(a+)+$\"},\"uniqueItems\":true}",
                "[\"aaaa\"]",
            ),
            schema(
                "{\"allOf\":[{\"not\":{\"const\":1}}],\"$defs\":{\"b\":{\"$ref\":\"#/$defs/b\"}}}",
                "```json\n1\n```",
            ),
        ];
        Box::new(Verifier::new("json-schema", corpus))
    },
};

pub(super) const LATEX: Target = Target {
    name: "latex",
    reads: "an answer in LaTeX and a ground truth",
    shape: Shape::Text,
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
    open: || Box::new(Verifier::new("math", math_corpus())),
};

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
    spec: RewardSpec,
    rewards: Rewards,
    corpus: Vec<Vec<u8>>,
}

impl Verifier {
    fn new(kind: &str, corpus: Vec<Vec<u8>>) -> Verifier {
        let spec = RewardSpec { on_error: OnError::Stop, ..RewardSpec::of_kind(kind) };
        Verifier { rewards: start(&spec), spec, corpus }
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
        let prompt = Arc::new(Prompt { columns, ..Prompt::default() });
        let case = Case {
            prompt,
            response: response.into(),
            response_ids: Vec::new(),
            max_new_tokens: 8,
            ended: true,
        };
        let scored = self.rewards.score(vec![case]).map(drop);
        if scored.is_err() {
            // An error ends a verifier, as it ends a run.
            self.rewards = start(&self.spec);
        }
        scored
    }
}

fn start(spec: &RewardSpec) -> Rewards {
    Rewards::new(std::slice::from_ref(spec)).expect("the verifier starts")
}
