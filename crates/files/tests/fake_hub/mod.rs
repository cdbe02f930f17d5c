//! A hub in this process that takes uploads as the real one does, and notes every departure from its protocol.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// The only token that may write.
pub const TOKEN: &str = "sesame-0123456789";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Says what goes wrong with a request.
#[derive(Clone, Copy)]
pub enum Fault {
    /// The answer, and the pause that it asks for.
    Status(u16, Option<u64>),
    /// The connection is closed after this number of bytes of the body.
    Cut(usize),
}

#[derive(Default)]
pub struct State {
    /// Repositories, and whether each is private.
    pub repos: BTreeMap<String, bool>,
    /// Large files by SHA-256.
    pub objects: BTreeMap<String, Vec<u8>>,
    pub parts: BTreeMap<String, Vec<u8>>,
    /// The lines of each commit.
    pub commits: Vec<Vec<Value>>,
    /// (a part of `METHOD /path`, what goes wrong), each used once.
    pub faults: Vec<(&'static str, Fault)>,
    /// Bytes of a part; large files go in one piece if it is 0.
    pub part_bytes: usize,
    /// `METHOD /path` of each request.
    pub log: Vec<String>,
    /// Requests of the client that the real hub does not allow.
    pub wrong: Vec<String>,
}

pub struct FakeHub {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    pub fn start(state: State) -> FakeHub {
        let listen = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = format!("http://{}", listener.local_addr().expect("it is bound"));
            (listener, address)
        };
        // The store of large files is another machine.
        let [(hub, endpoint), (store, store_at)] = [listen(), listen()];
        let addresses = Addresses { hub: endpoint.clone(), store: store_at };
        let state = Arc::new(Mutex::new(state));
        for listener in [hub, store] {
            let (shared, addresses) = (Arc::clone(&state), addresses.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    answer(stream, &mut shared.lock().expect("no thread panics"), &addresses);
                }
            });
        }
        FakeHub { endpoint, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics")
    }

    /// The number of requests whose `METHOD /path` holds `part`.
    pub fn count(&self, part: &str) -> usize {
        self.state().log.iter().filter(|line| line.contains(part)).count()
    }
}

#[derive(Clone)]
struct Addresses {
    hub: String,
    store: String,
}

struct Request {
    line: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A status, a body and an etag.
type Reply = (u16, Value, Option<String>);

fn ok(body: Value) -> Reply {
    (200, body, None)
}

fn answer(mut stream: TcpStream, state: &mut State, addresses: &Addresses) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let (mut line, mut headers) = (String::new(), BTreeMap::new());
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut header = String::new();
    while reader.read_line(&mut header).is_ok_and(|length| length > 2) {
        if let Some((name, value)) = header.split_once(':') {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_string());
        }
        header.clear();
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_string());
    let line = format!("{method} {path}");
    state.log.push(line.clone());
    let at = state.faults.iter().position(|(part, _)| line.contains(part));
    let fault = at.map(|at| state.faults.remove(at).1);
    let length: usize = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    if headers.contains_key("transfer-encoding") {
        state.wrong.push(format!("{line}: the body has no known length"));
    }
    let length = if let Some(Fault::Cut(bytes)) = fault { bytes.min(length) } else { length };
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() || matches!(fault, Some(Fault::Cut(_))) {
        return;
    }
    let request = Request { line, path, headers, body };
    let (status, value, etag) = match fault {
        Some(Fault::Status(status, _)) => (status, json!({ "error": "as was asked for" }), None),
        _ => reply(&request, state, addresses),
    };
    let mut head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    if let Some(Fault::Status(_, Some(seconds))) = fault {
        head += &format!("retry-after: {seconds}\r\n");
    }
    etag.iter().for_each(|etag| head += &format!("etag: \"{etag}\"\r\n"));
    let text = value.to_string();
    let _ = stream.write_all(format!("{head}content-length: {}\r\n\r\n{text}", text.len()).as_bytes());
}

fn reply(request: &Request, state: &mut State, addresses: &Addresses) -> Reply {
    let authorization = request.header("authorization");
    if let Some(place) = request.path.strip_prefix("/store/") {
        if !authorization.is_empty() {
            state.wrong.push(format!("{}: the token went to the store", request.line));
        }
        return store(request, state, place);
    }
    if authorization != format!("Bearer {TOKEN}") {
        return (401, json!({ "error": format!("Invalid credentials: {authorization}") }), None);
    }
    let path = request.path.as_str();
    if path == "/api/repos/create" {
        return create(request, state);
    }
    if let Some(repo) = path.strip_suffix(".git/info/lfs/objects/batch") {
        return batch(request, state, addresses, repo.trim_start_matches('/'));
    }
    if path == "/verify" {
        let (wish, held) = (request.json(), &state.objects);
        let is_held = wish["oid"].as_str().is_some_and(|oid| held.contains_key(oid));
        return if is_held { ok(json!({})) } else { (404, json!({}), None) };
    }
    let rest = path.strip_prefix("/api/models/").unwrap_or_default();
    let mut parts = rest.splitn(4, '/');
    let repo = format!("{}/{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Some(&private) = state.repos.get(&repo) else {
        return (404, json!({ "error": "Repository not found" }), None);
    };
    match (parts.next(), parts.next()) {
        (None, None) => ok(json!({ "id": repo, "private": private })),
        (Some("preupload"), Some("main")) => preupload(request, state),
        (Some("commit"), Some("main")) => commit(request, state),
        _ => (404, json!({ "error": "Revision not found" }), None),
    }
}

fn create(request: &Request, state: &mut State) -> Reply {
    let wish = request.json();
    let text = |key: &str| wish[key].as_str().unwrap_or_default().to_string();
    let repo = format!("{}/{}", text("organization"), text("name"));
    if text("organization") == "forbidden" {
        return (403, json!({ "error": "You don't have the rights" }), None);
    }
    let private = wish["private"] == json!(true);
    state.repos.insert(repo.clone(), private);
    ok(json!({ "url": format!("http://hub/{repo}") }))
}

/// Weights and long files are large; the sample must be the beginning of the file.
fn preupload(request: &Request, state: &mut State) -> Reply {
    let wish = request.json();
    let files = wish["files"].as_array().cloned().unwrap_or_default();
    let one = |file: &Value| {
        let (path, size) = (file["path"].as_str().unwrap_or_default(), file["size"].as_u64().unwrap_or(0));
        let sample = decoded(file["sample"].as_str().unwrap_or_default());
        if sample.len() as u64 != size.min(512) {
            state.wrong.push(format!("{path}: a sample of {} bytes", sample.len()));
        }
        let is_large = path.ends_with(".safetensors") || size > 100_000;
        json!({ "path": path, "uploadMode": if is_large { "lfs" } else { "regular" }, "shouldIgnore": false })
    };
    let answers: Vec<Value> = files.iter().map(one).collect();
    ok(json!({ "files": answers }))
}

fn batch(request: &Request, state: &mut State, addresses: &Addresses, repo: &str) -> Reply {
    let lfs = "application/vnd.git-lfs+json";
    if request.header("content-type") != lfs || request.header("accept") != lfs {
        state.wrong.push(format!("{}: not the types of Git LFS", request.line));
    }
    if !state.repos.contains_key(repo) {
        return (404, json!({ "message": "Repository not found" }), None);
    }
    let (store, wish) = (&addresses.store, request.json());
    let object = &wish["objects"][0];
    let oid = object["oid"].as_str().unwrap_or_default().to_string();
    let size = object["size"].as_u64().unwrap_or(0) as usize;
    if wish["operation"] != json!("upload") || wish["hash_algo"] != json!("sha256") || oid.len() != 64 {
        state.wrong.push(format!("a batch that is none: {wish}"));
    }
    let known = json!({ "oid": oid, "size": size });
    if state.objects.contains_key(&oid) {
        return ok(json!({ "objects": [known] }));
    }
    let mut header = serde_json::Map::new();
    let href = match state.part_bytes {
        0 => {
            header.insert("x-wanted".into(), json!("yes"));
            format!("{store}/store/{oid}?signature=secret")
        }
        bytes => {
            header.insert("chunk_size".into(), json!(bytes.to_string()));
            for part in 1..=size.div_ceil(bytes) {
                header.insert(
                    format!("{part:05}"),
                    json!(format!("{store}/store/{oid}/{part}?signature=secret")),
                );
            }
            format!("{store}/store/{oid}/complete")
        }
    };
    let actions = json!({
        "upload": { "href": href, "header": header },
        "verify": { "href": format!("{}/verify", addresses.hub) },
    });
    ok(json!({ "transfer": "basic", "objects": [{ "oid": oid, "size": size, "actions": actions }] }))
}

fn store(request: &Request, state: &mut State, place: &str) -> Reply {
    let place = place.split('?').next().unwrap_or_default();
    let (oid, part) = place.split_once('/').unwrap_or((place, ""));
    let body = match part {
        "" => {
            if request.header("x-wanted") != "yes" {
                state.wrong.push(format!("{}: a header is missing", request.line));
            }
            request.body.clone()
        }
        "complete" => {
            let wish = request.json();
            let mut whole = Vec::new();
            for one in wish["parts"].as_array().into_iter().flatten() {
                let etag = one["etag"].as_str().unwrap_or_default().trim_matches('"');
                whole.extend(state.parts.get(etag).cloned().unwrap_or_default());
            }
            whole
        }
        part => {
            let etag = format!("{oid}-{part}");
            state.parts.insert(etag.clone(), request.body.clone());
            return (200, json!({}), Some(etag));
        }
    };
    let sum: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    if sum != oid {
        return (400, json!({ "error": "another sum" }), None);
    }
    state.objects.insert(sum, body);
    ok(json!({}))
}

fn commit(request: &Request, state: &mut State) -> Reply {
    if request.header("content-type") != "application/x-ndjson" {
        state.wrong.push("a commit that is no JSON lines".into());
    }
    let text = String::from_utf8_lossy(&request.body).into_owned();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if lines.first().is_none_or(|line| line["key"] != json!("header")) {
        state.wrong.push("a commit without a header".into());
    }
    for line in lines.iter().skip(1) {
        let value = &line["value"];
        let held = value["oid"].as_str().and_then(|oid| state.objects.get(oid));
        let is_held = held.is_some_and(|bytes| value["size"] == json!(bytes.len()));
        if line["key"] == json!("lfsFile") && !is_held {
            return (400, json!({ "error": "a pointer to nothing" }), None);
        }
    }
    state.commits.push(lines);
    ok(json!({ "commitOid": COMMIT, "commitUrl": "http://hub/commit" }))
}

/// The bytes of a file of the newest commit.
pub fn committed(state: &State, path: &str) -> Option<Vec<u8>> {
    let line = state.commits.last()?.iter().find(|line| line["value"]["path"] == json!(path))?;
    match line["key"].as_str()? {
        "lfsFile" => state.objects.get(line["value"]["oid"].as_str()?).cloned(),
        _ => Some(decoded(line["value"]["content"].as_str()?)),
    }
}

fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for digit in text.chars().filter_map(|c| DIGITS.find(c)) {
        bits = bits << 6 | digit as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    bytes
}
