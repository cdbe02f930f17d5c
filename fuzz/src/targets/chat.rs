//! Chat templates: parsed, and rendered with a conversation.

use crate::mutate::Shape;
use crate::target::{Bounds, Subject, Target, text};
use plimsoll_base::Result;
use plimsoll_text::{ChatTemplate, Message};
use serde_json::Value;

pub(super) const TARGET: Target = Target {
    name: "chat-template",
    reads: "Jinja, parsed and rendered",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &[
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "if ",
        "elif ",
        "else",
        "endif",
        "for x in ",
        "endfor",
        "set x = ",
        "set ns.x = ",
        "endset",
        "macro m(a, b=1)",
        "endmacro",
        "m(1)",
        "m(m(",
        "call m()",
        "endcall",
        "filter upper",
        "endfilter",
        "with a = 1",
        "endwith",
        "raw",
        "endraw",
        "generation",
        "endgeneration",
        "break",
        "continue",
        "namespace(x=1)",
        "range(99999)",
        "range(",
        "dict(a=1)",
        "raise_exception('x')",
        "strftime_now('%Y')",
        "messages",
        "messages[0].content",
        "message",
        "loop.index",
        "loop",
        "x",
        "ns",
        "ns.x",
        " ~ ",
        " + ",
        " * ",
        " ** ",
        " / ",
        " // ",
        " % ",
        " - ",
        " and ",
        " or ",
        " not ",
        " in ",
        " is ",
        " is not defined",
        " if ",
        " else ",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        ".",
        "|",
        "=",
        "==",
        "<",
        "|tojson(indent=2)",
        "|length",
        "|join(',')",
        "|replace('a', 'aa')",
        "|map('upper')",
        "|selectattr('role', 'equalto', 'user')",
        "|sort",
        "|unique",
        "|list",
        "|string",
        "|trim",
        "|indent(9)",
        "|dictsort",
        "|items",
        "|default('x')",
        "|format(x)",
        ".split('a')",
        ".strip()",
        ".items()",
        ".format(x)",
        ".join(x)",
        ".splitlines()",
        "[1:]",
        "[::-1]",
        "'a'",
        "'%s'",
        "1",
        "10**9",
        "-1",
        "1.5",
        "none",
        "true",
        "'é\\u00e9'",
        "\n",
        " ",
    ],
    open: || Box::new(Templates { corpus: corpus(), conversation: conversation() }),
};

struct Templates {
    corpus: Vec<Vec<u8>>,
    conversation: Vec<Message>,
}

fn corpus() -> Vec<Vec<u8>> {
    let cases = include_str!("../../../crates/text/tests/jinja/cases.jsonl").lines();
    let template = |case: &str| {
        let case: Value = serde_json::from_str(case).expect("a case is JSON");
        case["template"].as_str().expect("a template is text").as_bytes().to_vec()
    };
    cases.map(template).collect()
}

fn conversation() -> Vec<Message> {
    [("system", "Be brief."), ("user", "1+1=?\n"), ("assistant", "<think>\nso\n</think>\n\n2")]
        .map(|(role, content)| Message::new(role, content))
        .into()
}

impl Subject for Templates {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let template = ChatTemplate::new(&text(input), &[("eos_token", "</s>"), ("bos_token", "<s>")])?;
        template.render(&self.conversation, true).map(drop)
    }
}
