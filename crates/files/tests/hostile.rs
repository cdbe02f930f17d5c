//! Hostile model files: each ends in its named error, in bounded memory and time. Peaks are of the process's resident
//! memory, which the kernel counts, so the cases run one after another in a process without other tests.

#[path = "it/common.rs"]
mod common;

use common::*;
use plimsoll_files::OpenModel;
use std::time::{Duration, Instant};

/// Bounds what opening a model may take beyond what was resident before.
const PEAK_BYTES_MAX: u64 = 512 << 20;
const TIME_MAX: Duration = Duration::from_secs(30);

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Opens a model and asserts the error, its peak and its time.
#[track_caller]
fn refused(name: &str, path: &std::path::Path, slug: &str, words: &str) {
    std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
    let (before, begun) = (status_bytes("VmRSS:"), Instant::now());
    let error = OpenModel::open(path.to_str().unwrap(), None, false).expect_err(name);
    let (peak, took) = (status_bytes("VmHWM:").saturating_sub(before), begun.elapsed());
    println!("{:>4} MiB {:>5} ms  {name}: {}", peak >> 20, took.as_millis(), error.message);
    assert_eq!(error.slug, slug, "{name}: {error}");
    assert!(error.message.contains(words), "{name}: {error}");
    assert!(error.to_string().len() < 1000, "{name}: an error of {} bytes", error.to_string().len());
    assert!(peak < PEAK_BYTES_MAX, "{name}: {} MiB", peak >> 20);
    assert!(took < TIME_MAX, "{name}: {took:?}");
}

#[test]
fn hostile_model_files_end_in_named_errors() {
    headers_of_safetensors();
    files_next_to_the_weights();
    metadata_of_gguf();
}

fn headers_of_safetensors() {
    let long = "x".repeat(100_000);
    let entry = |name: &str, dtype: &str, shape: &str| {
        format!("{{\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,4]}}}}")
    };
    let zeros = |bytes: usize| format!("[{}0]", "0,".repeat(bytes / 2));
    let many: Vec<String> = (0..1_400_000)
        .map(|i| format!("\"{i}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"))
        .collect();
    for (name, header, words) in [
        ("a long name", entry(&long, "I8", "[1]"), "xxx... (100000 bytes)` has dtype I8"),
        ("a long dtype", entry("a", &long, "[1]"), "xxx... (100000 bytes); F32"),
        ("a long shape", entry("a", "F32", &zeros(90 << 20)), "shape [0, 0, 0, 0, 0, 0, 0, 0, 0]"),
        ("a long field", entry("a", "F32", &format!("[1],\"x\":{}", zeros(90 << 20))), ""),
        ("many tensors", format!("{{{}}}", many.join(",")), "more than 262144 tensors"),
        ("a list", zeros(90 << 20), "not valid"),
        ("one name", format!("{{\"{}", "x".repeat(90 << 20)), "not valid"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = directory(dir.path(), &safetensors(&header, &[]));
        drop(header);
        let slug = if words.is_empty() { "model-file-truncated" } else { "model-file-corrupt" };
        refused(name, &path, slug, words);
    }
}

fn files_next_to_the_weights() {
    let objects = |bytes: usize| format!("[{}0]", "{\"\":0},".repeat(bytes / 7));
    let weights: Vec<String> = (0..300_000).map(|i| format!("\"{i}\":\"a.safetensors\"")).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", weights.join(","));
    for (file, text, slug, words) in [
        ("config.json", objects(4 << 20), "model-file-corrupt", "the limit is 4194304"),
        ("config.json", objects((4 << 20) - 64), "model-config-invalid", "expected a JSON object"),
        ("tokenizer_config.json", objects(5 << 20), "model-file-corrupt", "the limit is 4194304"),
        ("tokenizer.json", " ".repeat((64 << 20) + 1), "model-file-corrupt", "the limit is 67108864"),
        ("model.safetensors.index.json", index, "model-file-corrupt", "more than 262144 tensors"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = directory(dir.path(), &valid_safetensors());
        if file.ends_with("index.json") {
            std::fs::remove_file(path.join("model.safetensors")).unwrap();
        }
        std::fs::write(path.join(file), text).unwrap();
        refused(file, &path, slug, words);
    }
}

fn metadata_of_gguf() {
    let list = |kind: u32, count: u64, bytes: usize| {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        value.resize(value.len() + bytes, 0);
        Meta::Raw(9, value)
    };
    let with = |more: Vec<(&'static str, Meta)>| {
        let mut meta = gguf_meta("llama");
        meta.retain(|(key, _)| more.iter().all(|(other, _)| key != other));
        meta.extend(more);
        let (tensors, data) = gguf_tensors();
        gguf(&meta, &tensors, &data)
    };
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let lists = |kind, count, bytes| with(keys.map(|key| (key, list(kind, count, bytes))).into());
    let long: &'static str = "x".repeat(100_000).leak();
    let shapes = list(5, 4 << 20, 16 << 20);
    for (name, bytes, slug, words) in [
        ("bytes", lists(0, 8 << 20, 8 << 20), "model-file-corrupt", "in memory, the limit is 192.0 MiB"),
        ("empty strings", lists(8, 2 << 20, 16 << 20), "model-file-corrupt", "the limit is 192.0 MiB"),
        ("numbers", lists(11, 8 << 20, 64 << 20), "model-file-corrupt", "the limit is 192.0 MiB"),
        ("a list too long", lists(0, 9 << 20, 9 << 20), "model-file-corrupt", "9437184 items of a list"),
        ("a long key", with(vec![(long, Meta::Raw(99, Vec::new()))]), "model-file-corrupt", "(100000 bytes)"),
        (
            "a long architecture",
            with(vec![("general.architecture", Meta::Str(long))]),
            "model-unsupported",
            "general.architecture",
        ),
        (
            "layers of several shapes",
            with(vec![("llama.feed_forward_length", shapes)]),
            "model-unsupported",
            "[0,0,0,0,0,0,0,0]",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        refused(name, &path, slug, words);
    }
}

/// Bounds what a hub's listing may take: its 8 MiB, which a buffer that doubles holds, and the names that are kept.
#[cfg(feature = "hub")]
const LISTING_PEAK_BYTES_MAX: u64 = 32 << 20;

/// A hub that lists small values: as a tree, 8 MiB of them took 300 MiB and more. It is asked by a process of its own,
/// whose variables name it.
#[cfg(feature = "hub")]
#[test]
fn a_hostile_listing_of_a_hub_is_read_in_place() {
    const BYTES: usize = (8 << 20) - 4096;
    let filled = |before: &str, piece: &str, after: &str| {
        format!("{before}{}0{after}", piece.repeat(BYTES / piece.len()))
    };
    let sha = "\"sha\":\"0123456789abcdef0123456789abcdef01234567\"";
    for (name, body, slug) in [
        ("numbers", filled(&format!("{{{sha},\"siblings\":["), "0,", "]}"), "model-file-missing"),
        ("objects", filled(&format!("{{{sha},\"siblings\":["), "{\"\":0},", "]}"), "model-file-missing"),
        (
            "other fields",
            filled(&format!("{{{sha},\"siblings\":[],\"x\":["), "[],", "]}"),
            "model-file-missing",
        ),
        (
            "names",
            filled(&format!("{{{sha},\"siblings\":["), "{\"rfilename\":\"a\"},", "]}"),
            "hub-unreachable",
        ),
        ("two commits", format!("{{{sha},{sha},\"siblings\":[]}}"), "hub-unreachable"),
    ] {
        let cache = tempfile::tempdir().expect("a folder");
        let output = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "asks_a_hub", "--ignored", "--nocapture"])
            .env("HF_ENDPOINT", served(body))
            .env("HF_HUB_CACHE", cache.path())
            .env("HF_HOME", cache.path())
            .env_remove("HF_HUB_OFFLINE")
            .output()
            .expect("this test runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = said.lines().find_map(|line| line.split_once("hub: ")).expect(&said).1;
        let (peak, error) = found.split_once(' ').expect("a peak and an error");
        let peak: u64 = peak.parse().expect("bytes");
        println!("{:>4} MiB  {name}: {error}", peak >> 20);
        assert!(error.starts_with(slug), "{name}: {error}");
        assert!(peak < LISTING_PEAK_BYTES_MAX, "{name}: {} MiB", peak >> 20);
    }
}

/// The process that asks; prints its peak and the error.
#[cfg(feature = "hub")]
#[test]
#[ignore = "a part of another test"]
fn asks_a_hub() {
    if std::env::var_os("HF_ENDPOINT").is_none() {
        return;
    }
    std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
    let before = status_bytes("VmRSS:");
    let error = OpenModel::open("hf:o/m", None, true).expect_err("no model");
    println!("hub: {} {} {}", status_bytes("VmHWM:").saturating_sub(before), error.slug, error.message);
}

/// Answers each request with one body.
#[cfg(feature = "hub")]
fn served(body: String) -> String {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                line.clear();
            }
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let answer = [head.as_bytes(), body.as_bytes()].concat();
            // The other side may have gone.
            let _ = stream.get_ref().write_all(&answer);
        }
    });
    endpoint
}
