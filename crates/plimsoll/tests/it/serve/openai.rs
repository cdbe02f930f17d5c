//! OpenAI's own Python client, as people use it: see `client.py` next to this file.

use super::client::Server;
use super::{BYTES, GOLDEN};
use crate::common::{python_with, text};
use std::process::Command;

const TEMPLATE: &str = "data.chat_template={% if tools %}<tool_call>{{ tools | length }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

#[test]
fn the_official_client_chats_streams_and_reads_errors() {
    let Some(python) = python_with("openai") else { return };
    let server = Server::start(&[
        GOLDEN,
        "--set",
        BYTES,
        "--set",
        TEMPLATE,
        "--name",
        "tiny",
        "--max-new-tokens",
        "64",
    ]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/serve/client.py");
    let done =
        Command::new(python).args([script, &format!("http://{}/v1", server.at)]).output().expect("it runs");
    assert!(done.status.success(), "{}\n{}", text(&done.stdout), text(&done.stderr));
}
