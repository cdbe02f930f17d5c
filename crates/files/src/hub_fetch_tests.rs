//! Data sets of the hub against a server in this process.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const ROWS: &[u8] = b"{\"question\": \"1+1=\", \"answer\": \"2\"}\n";

type Log = Arc<Mutex<Vec<String>>>;

/// Serves `o/d`, whose `main/train.jsonl` is cut after 10 bytes `cuts` times; `o/busy` answers 429 and `o/gated` 401.
fn serve(mut cuts: usize) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let log: Log = Arc::default();
    let seen = Arc::clone(&log);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &mut cuts, &seen);
        }
    });
    (endpoint, log)
}

fn answer(mut stream: TcpStream, cuts: &mut usize, log: &Log) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut range) = (String::new(), 0usize);
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut header = String::new();
    while reader.read_line(&mut header).unwrap() > 2 {
        if let Some(from) = header.to_lowercase().strip_prefix("range: bytes=") {
            range = from.trim().trim_end_matches('-').parse().unwrap();
        }
        header.clear();
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    log.lock().unwrap().push(format!("{method} {path} from {range}"));
    let names = ["main/train.jsonl", "main/test.jsonl", "../../evil.jsonl", "/etc/train.jsonl"];
    let names = names.map(|name| format!("{{\"rfilename\": \"{name}\"}}")).join(",");
    let listing = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{names}]}}");
    let (status, body) = match path {
        "/api/datasets/o/d/revision/main" => ("200 OK", listing.as_bytes()),
        "/api/datasets/o/busy/revision/main" => ("429 Too Many Requests", &b"slow down"[..]),
        "/api/datasets/o/gated/revision/main" => ("401 Unauthorized", &b"no"[..]),
        path if path.starts_with("/datasets/o/d/resolve/") => ("200 OK", ROWS),
        _ => ("404 Not Found", &b"no"[..]),
    };
    let status = if range > 0 { "206 Partial Content" } else { status };
    let rest = &body[range.min(body.len())..];
    let length = rest.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\netag: \"abc\"\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    if method == "GET" && path.ends_with(".jsonl") && *cuts > 0 {
        *cuts -= 1;
        stream.write_all(&rest[..rest.len().min(10)]).unwrap();
    } else if method == "GET" {
        stream.write_all(rest).unwrap();
    }
}

fn hub(cache: &Path, endpoint: &str) -> Hub {
    Hub { cache: cache.into(), endpoint: endpoint.into(), offline: false, token: Some("sesame".into()) }
}

fn data(text: &str) -> HubData {
    HubData::parse(text).expect("it begins with hf:").expect("a good name")
}

#[test]
fn a_file_is_fetched_resumed_laid_out_and_then_local() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, log) = serve(1);
    let found = resolve_with(&hub(dir.path(), &endpoint), &data("hf:o/d"), "train", true).unwrap();
    let folder = dir.path().join("datasets--o--d");
    assert_eq!(found.commit, COMMIT);
    assert_eq!(found.path, folder.join("snapshots").join(COMMIT).join("main/train.jsonl"));
    assert_eq!(std::fs::read(&found.path).unwrap(), ROWS);
    assert_eq!(std::fs::read_link(&found.path).unwrap(), Path::new("../../../blobs/abc"));
    assert!(log.lock().unwrap().iter().any(|line| line.ends_with("train.jsonl from 10")), "{log:?}");
    assert!(!dir.path().join("evil.jsonl").exists());
    // Now without any server; another split is not there.
    let offline = Hub { offline: true, ..hub(dir.path(), "http://127.0.0.1:1") };
    assert_eq!(resolve_with(&offline, &data("hf:o/d"), "train", false).unwrap(), found);
    let pinned = data("hf:o/d").pinned(COMMIT);
    assert_eq!(resolve_with(&offline, &pinned, "train", false).unwrap(), found);
    assert_eq!(resolve_with(&offline, &data("hf:o/d"), "test", true).unwrap_err().slug, "data-not-local");
}

#[test]
fn what_goes_wrong_has_a_name_and_not_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, _) = serve(usize::MAX);
    let online = hub(dir.path(), &endpoint);
    let closed = hub(dir.path(), "http://127.0.0.1:1");
    for (hub, name, slug, words) in [
        (&online, "hf:o/none", "hub-refused", "404"),
        (&online, "hf:o/gated", "hub-refused", "401"),
        (&online, "hf:o/busy", "hub-unreachable", "too many requests"),
        (&online, "hf:o/d/valid", "data-hub-file", "valid"),
        // Ten bytes come each time, and 5 times are too few.
        (&online, "hf:o/d/train.jsonl", "data-hub-file", "train.jsonl"),
        (&closed, "hf:o/d", "hub-unreachable", "127.0.0.1:1"),
    ] {
        let error = resolve_with(hub, &data(name), "train", true).expect_err(name);
        assert_eq!(error.slug, slug, "{error}");
        assert!(error.to_string().contains(words) && !error.to_string().contains("sesame"), "{error}");
    }
    let local = resolve_with(&online, &data("hf:o/d"), "train", false).unwrap_err();
    assert_eq!(local.slug, "data-not-local");
}
