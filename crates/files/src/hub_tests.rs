//! The hub resolver against a server in this process: layout, resume, offline, refusals.

use super::*;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Request lines with their interesting headers, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// Serves a repository `o/m`; the first GET of the weights is cut after 10 bytes.
fn serve(weights: Vec<u8>) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let log: Log = Arc::default();
    let seen = Arc::clone(&log);
    std::thread::spawn(move || {
        let mut cut = true;
        for stream in listener.incoming() {
            answer(stream.unwrap(), &weights, &mut cut, &seen);
        }
    });
    (endpoint, log)
}

fn answer(stream: TcpStream, weights: &[u8], cut: &mut bool, log: &Log) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut range, mut token) = (String::new(), 0usize, false);
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut header = String::new();
    while reader.read_line(&mut header).unwrap() > 2 {
        let lower = header.to_lowercase();
        if let Some(from) = lower.strip_prefix("range: bytes=") {
            range = from.trim().trim_end_matches('-').parse().unwrap();
        }
        token |= lower.starts_with("authorization: bearer sesame");
        header.clear();
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    log.lock().unwrap().push(format!("{method} {path} from {range} token {token}"));
    let etag: String = Sha256::digest(weights).iter().map(|b| format!("{b:02x}")).collect();
    let listing = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"config.json"}},{{"rfilename":"model.safetensors"}},{{"rfilename":"../evil"}}]}}"#
    );
    let (status, body, etag) = match path {
        "/api/models/o/m/revision/main" => ("200 OK", listing.into_bytes(), "x".to_string()),
        p if p.ends_with("/config.json") => ("200 OK", b"{}".to_vec(), "c0ffee".to_string()),
        p if p.ends_with("/model.safetensors") => ("200 OK", weights.to_vec(), etag),
        _ => ("404 Not Found", b"no".to_vec(), "x".to_string()),
    };
    let status = if range > 0 { "206 Partial Content" } else { status };
    let mut stream = stream;
    let rest = &body[range.min(body.len())..];
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"{etag}\"\r\nconnection: close\r\n\r\n",
        rest.len()
    )
    .unwrap();
    if method == "GET" && path.ends_with("/model.safetensors") && *cut {
        *cut = false;
        stream.write_all(&rest[..10]).unwrap();
    } else if method == "GET" {
        stream.write_all(rest).unwrap();
    }
}

fn hub(cache: &Path, endpoint: &str) -> Hub {
    Hub { cache: cache.into(), endpoint: endpoint.into(), offline: false, token: Some("sesame".into()) }
}

#[test]
fn a_model_is_fetched_resumed_laid_out_and_then_local() {
    let dir = tempfile::tempdir().unwrap();
    let weights: Vec<u8> = (0..100).collect();
    let (endpoint, log) = serve(weights.clone());
    let snapshot = hub(dir.path(), &endpoint).resolve("o/m", "main", true).unwrap();
    let folder = dir.path().join("models--o--m");
    assert_eq!(snapshot, folder.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read(snapshot.join("model.safetensors")).unwrap(), weights);
    assert_eq!(std::fs::read_link(snapshot.join("config.json")).unwrap(), Path::new("../../blobs/c0ffee"));
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(std::fs::read_dir(folder.join("blobs")).unwrap().count(), 2, "no incomplete file is left");
    let log = log.lock().unwrap();
    assert!(log.iter().any(|l| l.contains("model.safetensors from 10 ")), "resumed: {log:?}");
    assert!(log.iter().all(|l| l.ends_with("token true")), "{log:?}");
    // Now without any server.
    let offline = Hub { offline: true, ..hub(dir.path(), "http://127.0.0.1:1") };
    assert_eq!(offline.resolve("o/m", "main", false).unwrap(), snapshot);
    assert_eq!(offline.resolve("o/m", COMMIT, false).unwrap(), snapshot);
}

#[test]
fn what_is_not_here_is_named_by_its_reason_and_without_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, _) = serve(vec![1]);
    let online = hub(dir.path(), &endpoint);
    let closed = hub(dir.path(), "http://127.0.0.1:1");
    let offline = Hub { offline: true, ..hub(dir.path(), &endpoint) };
    for (result, slug) in [
        (online.resolve("o/other", "main", true), "hub-refused"),
        (online.resolve("o/m", "main", false), "model-not-local"),
        (offline.resolve("o/m", "main", true), "model-not-local"),
        (closed.resolve("o/m", "main", true), "hub-unreachable"),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.slug, slug);
        assert!(!error.to_string().contains("sesame"));
    }
}

#[test]
fn a_file_that_is_not_what_its_hash_says_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let part = dir.path().join("x.incomplete");
    std::fs::write(&part, b"abc").unwrap();
    let mut file = File::open(&part).unwrap();
    assert_eq!(verify(&mut file, &part, &"0".repeat(64)).unwrap_err().slug, "model-file-corrupt");
    assert!(!part.exists());
}

/// A link at `blobs/HASH.incomplete` was followed, and its target cut and overwritten.
#[test]
fn r_a_link_in_a_cache_that_others_may_write_led_a_download_elsewhere() {
    use std::os::unix::fs::symlink;
    let weights: Vec<u8> = (0..100).collect();
    let etag: String = Sha256::digest(&weights).iter().map(|b| format!("{b:02x}")).collect();
    for planted in [format!("blobs/{etag}.incomplete"), "blobs/c0ffee.incomplete".into()] {
        let dir = tempfile::tempdir().unwrap();
        let (victim, folder) = (dir.path().join("victim"), dir.path().join("models--o--m"));
        std::fs::write(&victim, "kept").unwrap();
        std::fs::create_dir_all(folder.join("blobs")).unwrap();
        symlink(&victim, folder.join(&planted)).unwrap();
        let (endpoint, _) = serve(weights.clone());
        let error = hub(dir.path(), &endpoint).resolve("o/m", "main", true).unwrap_err();
        assert!(error.slug == "symlink-refused" && error.message.contains(&planted), "{error}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
    }
    for planted in ["blobs", "refs", "snapshots"] {
        let dir = tempfile::tempdir().unwrap();
        let (outside, folder) = (dir.path().join("outside"), dir.path().join("models--o--m"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::create_dir(&folder).unwrap();
        symlink(&outside, folder.join(planted)).unwrap();
        let (endpoint, _) = serve(weights.clone());
        let error = hub(dir.path(), &endpoint).resolve("o/m", "main", true).unwrap_err();
        assert!(error.slug == "symlink-refused" && error.message.contains(planted), "{error}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{planted}");
    }
}

#[test]
fn the_origin_of_an_endpoint_is_scheme_and_host() {
    for (endpoint, expect) in [("https://h", "https://h"), ("http://h:1/a/b", "http://h:1"), ("h/x", "h")] {
        assert_eq!(origin(endpoint), expect);
    }
}
