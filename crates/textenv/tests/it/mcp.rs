//! Tools of servers that speak the Model Context Protocol: their descriptions, the results of calls, and what is a
//! fault of the server.

use crate::shapes::{Table, call, refusal, tool, write};
use plimsoll_base::slugs;
use plimsoll_textenv::{Job, Settings, Start};
use plimsoll_worker::Network;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};

/// A server of both kinds: over its pipes, and with `http` over a port of its own, which it writes to a file. It counts
/// the calls of a session.
const SERVER: &str = r#"
import http.server, json, os, sys, threading

TOOLS = [
    {"name": "add", "description": "Adds.", "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    {"name": "break", "inputSchema": {"type": "object"}},
]

class Session:
    calls = 0

    def answer(self, m):
        if m["method"] == "initialize":
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {}}}
        if m["method"] == "tools/list":
            at = 1 if m["params"].get("cursor") else 0
            return {"result": {"tools": TOOLS[at:at + 1], **({} if at else {"nextCursor": "1"})}}
        name, arguments = m["params"]["name"], m["params"]["arguments"]
        self.calls += 1
        if name == "break":
            how = arguments.get("how")
            if how == "dies":
                os._exit(3)
            if how == "chats":
                print("so it goes", flush=True)
            if how == "hangs":
                import time; time.sleep(600)
            if how == "fails":
                return {"error": {"code": -32603, "message": "no disk"}}
            return {"result": {"content": [{"type": "text", "text": "no such way"}], "isError": True}}
        if "x" not in arguments:
            return {"error": {"code": -32602, "message": "x is missing"}}
        text = [{"type": "text", "text": t} for t in (str(arguments["x"] + 1), f"call {self.calls}")]
        return {"result": {"content": text}}

def pipes():
    session = Session()
    ask = lambda m: print(json.dumps({"jsonrpc": "2.0", **m}), flush=True)
    for line in sys.stdin:
        m = json.loads(line)
        if "id" in m and "method" in m:
            ask({"method": "notifications/message", "params": {}})
            ask({"id": "own", "method": "ping"})
            assert json.loads(sys.stdin.readline())["result"] == {}
            ask({"id": m["id"], **session.answer(m)})

class Web(http.server.BaseHTTPRequestHandler):
    sessions = {}
    log_message = lambda *_: None

    def do_POST(self):
        m = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if m["method"] == "initialize":
            name = str(len(self.sessions))
            self.sessions[name] = Session()
        else:
            name = self.headers.get("Mcp-Session-Id")
            assert self.headers["MCP-Protocol-Version"] == "2025-06-18"
        if "id" not in m:
            self.send_response(202); self.end_headers(); return
        said = json.dumps({"jsonrpc": "2.0", "id": m["id"], **self.sessions[name].answer(m)})
        is_stream = m["method"] == "tools/call"
        body = (f"event: message\ndata: {said}\n\n" if is_stream else said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", name)
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self):
        del self.sessions[self.headers["Mcp-Session-Id"]]
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()

if sys.argv[1:]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    print(server.server_port, flush=True)
    server.serve_forever()
pipes()
"#;

/// The server as a file, and the settings of an environment whose tools are those of `server`.
fn with_server(server: impl FnOnce(&str) -> String) -> (tempfile::TempDir, Settings) {
    let (folder, file) = write(SERVER);
    let rows = folder.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"prompt\": \"Add.\"}\n").unwrap();
    (folder, Settings { servers: vec![server(&file)], rows: Some(rows), ..crate::settings() })
}

/// Plays two episodes: a call is a call of its own episode's session.
fn play(settings: &Settings) -> Table {
    let mut table = Table::open("tools", settings).unwrap();
    let about = table.0.about().clone();
    let names: Vec<&Value> = about.tools.iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["add", "break"]);
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    let expect = json!({"name": "add", "description": "Adds.", "parameters": parameters});
    assert_eq!(about.tools[0], json!({"type": "function", "function": expect}));
    for _ in 0..2 {
        table.reset(Start::train(0, 0));
        let said = table.step("", &[call("add", json!({ "x": 2 })), call("add", json!({ "x": 7 }))]);
        assert_eq!((said.messages, said.done), (vec![tool("3\ncall 1"), tool("8\ncall 2")], false));
    }
    let refused = table.step("", &[call("add", json!({})), call("break", json!({})), call("sub", json!({}))]);
    let words = ["{'error': 'x is missing'}", "{'error': 'no such way'}", "{'error': 'Tool sub not found.'}"];
    assert_eq!(refused.messages, words.map(tool));
    assert!(table.step("3", &[]).done);
    table
}

#[test]
fn tools_of_a_program_are_called_and_each_episode_has_a_program_of_its_own() {
    let (_folder, settings) = with_server(|file| format!("python3 '{file}'"));
    let mut table = play(&settings);
    // What the server does is no word to the model, and no reward: the episode has failed, and the next one begins.
    for (how, words) in [
        ("dies", "has ended, with status 3"),
        ("chats", "no message of the protocol: b'so it goes"),
        ("fails", "`tools/call` fails: no disk (code -32603)"),
    ] {
        table.reset(Start::train(0, 0));
        let error =
            table.ask(Job::Step(String::new(), vec![call("break", json!({ "how": how }))])).unwrap_err();
        assert_eq!(error.slug, slugs::TEXT_ENVIRONMENT_RAISED, "{error}");
        assert!(
            error.message.contains("ServerFault: the server `python3`") && error.message.contains(words),
            "{error}"
        );
    }
    table.reset(Start::train(0, 0));
    assert_eq!(table.step("", &[call("add", json!({ "x": 2 }))]).messages, [tool("3\ncall 1")]);
}

#[test]
fn a_server_at_an_address_has_a_session_for_each_episode() {
    let (folder, settings) = with_server(|file| file.to_string());
    let mut server = std::process::Command::new("python3");
    let server = server.arg(folder.path().join("mine.py")).arg("http").stdout(std::process::Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let address = format!("http://127.0.0.1:{}/mcp", port.trim());
    let settings = Settings { servers: vec![address.clone()], network: Network::Allow, ..settings };
    let mut table = play(&settings);
    server.kill().unwrap();
    server.wait().unwrap();
    let error = table.ask(Job::Reset(Start::train(0, 0))).unwrap_err();
    assert!(
        error.message.contains(&format!("ServerFault: the server `{address}`: it is not reached")),
        "{error}"
    );
}

#[test]
fn what_is_no_server_is_refused_before_the_run() {
    for (server, words) in [
        (
            "absent-program --port 1",
            "the server `absent-program`: `absent-program --port 1` cannot be started",
        ),
        ("true", "the server `true`: it has ended, with status 0"),
        (
            // It stays, so that what it has written is read before its end is seen.
            "sh -c 'echo hello; cat > /dev/null'",
            "the server `sh`: it wrote what is no message of the protocol: b'hello",
        ),
    ] {
        let (_folder, settings) = with_server(|_| server.into());
        let error = refusal("tools", &settings);
        assert_eq!(error.slug, "text-environment-missing", "{error}");
        assert!(error.message.contains(words), "{server}: {error}");
    }
}
