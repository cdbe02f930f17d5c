//! A plain client over a socket: what it sends is what a test says, to the byte.

#![allow(dead_code, reason = "the tests of the binary use a part")]

use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A machine that runs other tests may need this long for what usually takes milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Client {
    /// `127.0.0.1:PORT`.
    pub at: String,
}

/// An answer: status, head in lower case, body.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }

    /// The objects of a stream, which ends as streams do.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert!(self.head.contains("content-type: text/event-stream"), "{}", self.head);
        let mut data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect()
    }

    /// `code` and `param` of an error.
    pub fn error(&self) -> (String, Value) {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|words| !words.is_empty()), "{}", self.body);
        assert!(error["type"].is_string(), "{}", self.body);
        (error["code"].as_str().expect("a slug").to_string(), error["param"].clone())
    }
}

impl Client {
    pub fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut link = TcpStream::connect(&self.at).expect("it listens");
        link.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        link.write_all(bytes).expect("it takes a request");
        link
    }

    /// `line` is method and target; `headers` end with a line break each.
    pub fn ask(&self, line: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        answer(self.send(request.as_bytes()))
    }

    pub fn get(&self, target: &str) -> Answer {
        self.ask(&format!("GET {target}"), &format!("Host: {}\r\n", self.at), "")
    }

    pub fn post(&self, target: &str, body: &Value) -> Answer {
        self.post_text(target, &body.to_string())
    }

    pub fn post_text(&self, target: &str, body: &str) -> Answer {
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.at);
        self.ask(&format!("POST {target}"), &headers, body)
    }

    /// Begins a request whose answer the caller reads as it likes.
    pub fn begin(&self, target: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.at,
            body.len()
        );
        self.send((head + &body).as_bytes())
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let body = self.get("/metrics").body;
        let line = body.lines().find_map(|line| line.strip_prefix(&format!("plimsoll_serve_{name} ")));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {body}"))
    }

    /// Waits until a metric is as wanted.
    pub fn wait_for(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        let begun = Instant::now();
        while !wanted(self.metric(name)) {
            assert!(begun.elapsed() < PATIENCE, "{name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Reads an answer to its end.
pub fn answer(mut link: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    link.read_to_end(&mut bytes).expect("an answer");
    let at = bytes.windows(4).position(|part| part == b"\r\n\r\n").expect("a head");
    let head = text(&bytes[..at]).to_lowercase();
    let body = &bytes[at + 4..];
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_vec() };
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Answer { status, head, body: text(&body) }
}

/// Joins the chunks of a body; one that breaks off ends early.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(at) = body.windows(2).position(|part| part == b"\r\n") {
        let size = usize::from_str_radix(&text(&body[..at]), 16).expect("a size");
        if size == 0 {
            break;
        }
        whole.extend_from_slice(&body[at + 2..at + 2 + size]);
        body = &body[at + 4 + size..];
    }
    whole
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
