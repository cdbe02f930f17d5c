//! Bodies of requests, as `plimsoll serve` reads them, and responses in which tool calls may be.

use crate::mutate::Shape;
use crate::target::{Bounds, Subject, Target};
use plimsoll_base::Result;
use plimsoll_files::TokenizerFiles;
use plimsoll_serve::Bodies;
use plimsoll_text::{ChatTemplate, Tokenizer};

pub(super) const TARGET: Target = Target {
    name: "serve",
    reads: "bodies of requests to a server, and calls in responses",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "null",
        "true",
        "-1",
        "1e308",
        "18446744073709551616",
        "\"\\ud800\"",
        "\"messages\":",
        "{\"role\":\"user\",\"content\":\"a\"}",
        "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}",
        "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]",
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
        "\"tool_choice\":\"auto\"",
        "\"prompt\":",
        "\"token_ids\":[1,2]",
        "\"sampling_params\":{",
        "\"temperature\":",
        "\"stop\":[\"a\"]",
        "\"stop_token_ids\":[259]",
        "\"seed\":",
        "\"n\":",
        "\"logprobs\":",
        "\"chat_template_kwargs\":{\"a\":[[",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "{\"name\":\"f\",\"parameters\":{}}",
        ";",
        "\n",
        " ",
        "é",
    ],
    open: || {
        let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
        let tokenizer = Tokenizer::from_files(&files, 260).expect("bytes need no file");
        let template = ChatTemplate::new(TEMPLATE, &[]).expect("it is a template");
        let corpus = CORPUS.iter().map(|body| body.as_bytes().to_vec()).collect();
        Box::new(Requests { bodies: Bodies::new(tokenizer, template), corpus })
    },
};

const TEMPLATE: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}";

const CORPUS: [&str; 6] = [
    "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],\
     \"temperature\":0.5,\"n\":2,\"stop\":[\"x\"],\"logprobs\":true,\"top_logprobs\":1,\"user\":\"me\"}",
    "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\
     \"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"content\":\"4\",\"tool_call_id\":\"c\"}],\"tools\":[{\"type\":\
     \"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
    "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":5,\"seed\":-3,\"return_token_ids\":true,\"stop_token_ids\":[1]}",
    "{\"token_ids\":[1,2,3],\"sampling_params\":{\"max_tokens\":8,\"top_k\":-1,\"top_p\":0.9,\"ignore_eos\":true,\"logprobs\":0}}",
    "Let me see.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, null]}}</tool_call>",
    "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {\"b\": \"x\"}}",
];

struct Requests {
    bodies: Bodies,
    corpus: Vec<Vec<u8>>,
}

impl Subject for Requests {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        self.bodies.read(input).map(drop)
    }
}
