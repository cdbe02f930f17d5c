//! Chats with images: the bits of `generate --image`, and what a server does not take.

use super::client::Server;
use super::{BYTES, GOLDEN, LAST_MESSAGE};
use crate::sees::{Seeing, image, numbers};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

/// A file's bytes as a client sends them.
fn sent(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(bytes))
}

fn file(path: &str) -> String {
    sent(&std::fs::read(path).expect("a file"))
}

fn part(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

fn chat(parts: &Value) -> Value {
    json!({
        "messages": [{ "role": "user", "content": parts }], "max_tokens": 6, "temperature": 1.0, "seed": 0,
        "logprobs": true, "return_token_ids": true,
    })
}

/// The counts, ids and log-probabilities of an answer.
fn drawn(answer: &Value) -> (Value, Value, Vec<f32>) {
    let choice = &answer["choices"][0];
    let list = choice["logprobs"]["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let logprobs = list.iter().map(|one| one["logprob"].as_f64().expect("a number") as f32).collect();
    (answer["usage"]["prompt_tokens"].clone(), choice["token_ids"].clone(), logprobs)
}

/// The head of a PNG of such a size, without its pixels.
fn png_head(width: u32, height: u32) -> Vec<u8> {
    let body = [&b"IHDR"[..], &width.to_be_bytes(), &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let crc = !body.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    });
    [&b"\x89PNG\r\n\x1a\n\0\0\0\x0d"[..], &body, &crc.to_be_bytes(), b"\0\0\0\0IDAT\x35\xaf\x06\x1e"].concat()
}

#[test]
fn a_chat_with_images_has_the_bits_of_generate() {
    let (seeing, [rgb, turned]) = (Seeing::new(), ["rgb.png", "turned.png"].map(image));
    // Room for two images: requests wait for one another.
    let server = Server::start(&[
        &seeing.model,
        "--images=2",
        "--seed=5",
        "--prompt-tokens=48",
        "--max-new-tokens=8",
        "--sequences=3",
        "--set",
        LAST_MESSAGE,
    ]);
    let sets = ["rollout.max_new_tokens=6", "rollout.temperature=1.0", "seed=5"];
    let expect = |prompt: &str, images: &[&str]| {
        let found = seeing.generate(prompt, images, &sets).expect("it is generated");
        (found["prompt_tokens"].clone(), found["tokens"].clone(), numbers(&found["logprobs"]))
    };
    let (words, [rgb_part, turned_part]) =
        (json!({ "type": "text", "text": "what" }), [&rgb, &turned].map(|path| part(&file(path))));
    let cases = [
        (json!([rgb_part, words]), expect("what", &[&rgb])),
        (json!([turned_part, words]), expect("what", &[&turned])),
        (json!([rgb_part, words, turned_part]), expect("<image>what<image>", &[&rgb, &turned])),
        (json!([turned_part, words, rgb_part]), expect("<image>what<image>", &[&turned, &rgb])),
        (json!("what"), expect("what", &[])),
    ];
    std::thread::scope(|scope| {
        for turn in 0..4 {
            for (parts, expect) in &cases {
                let server = &server;
                scope.spawn(move || {
                    let answer = server.post("/v1/chat/completions", &chat(parts)).json();
                    assert_eq!(&drawn(&answer), expect, "turn {turn}: {answer}");
                });
            }
        }
    });
    let mut body = chat(&cases[2].0);
    (body["n"], body["return_token_ids"]) = (json!(3), json!(true));
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(drawn(&answer), cases[2].1, "with more choices");
    // Numbers of vectors are other ones in each request, and the images the same.
    assert!(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() >= Some(16), "{answer}");
    let ids = answer["prompt_token_ids"].as_array().expect("a list");
    assert_eq!(ids.iter().filter(|id| **id == 58).count(), 24, "a placeholder for each vector: {answer}");
}

#[test]
fn an_image_that_is_not_taken_is_refused_by_name() {
    let seeing = Seeing::new();
    let server = Server::start(&[
        &seeing.model,
        "--images=2",
        "--prompt-tokens=24",
        "--max-new-tokens=8",
        "--set",
        LAST_MESSAGE,
    ]);
    let rgb = file(&image("rgb.png"));
    let whole = std::fs::read(image("rgb.png")).expect("a file");
    let refused = |path: &str, body: &Value, slug: &str| {
        let answer = server.post(path, body);
        assert_eq!((answer.status, answer.error().0.as_str()), (400, slug), "{}", answer.body);
    };
    let refused_parts = |parts: Value, slug: &str| refused("/v1/chat/completions", &chat(&parts), slug);
    refused_parts(json!([part("https://example.com/a.png")]), "image-url");
    refused_parts(json!([part("file:///etc/passwd")]), "image-url");
    refused_parts(json!([part("a.png")]), "image-source-invalid");
    refused_parts(json!([part("data:image/png;base64,??")]), "image-source-invalid");
    refused_parts(json!([part("data:image/png,abc")]), "image-source-invalid");
    refused_parts(json!([part(&sent(b"<html>"))]), "image-format-unknown");
    refused_parts(json!([part(&sent(&whole[..whole.len() / 2]))]), "image-damaged");
    refused_parts(json!([part(&sent(&png_head(60_000, 60_000)))]), "image-too-large");
    refused_parts(json!([part(&sent(&png_head(5_000, 5_000)))]), "image-too-large");
    refused_parts(json!([part(&sent(&png_head(4_000, 4)))]), "image-too-narrow");
    refused_parts(json!([part(&rgb), part(&rgb), part(&rgb)]), "serve-too-many-images");
    refused_parts(json!([part(&rgb), part(&rgb)]), "serve-too-long");
    refused_parts(json!([{ "type": "image_url" }]), "serve-bad-request");
    refused_parts(
        json!([{ "type": "image_url", "image_url": { "url": rgb, "detail": "low" } }]),
        "serve-field-refused",
    );
    refused_parts(json!([part(&rgb), { "type": "text", "text": "<|image_pad|>" }]), "image-count");
    refused_parts(json!("a<|image_pad|>"), "image-count");
    refused("/v1/completions", &json!({ "prompt": "a<|image_pad|>" }), "image-count");
    refused("/v1/completions", &json!({ "prompt": "a", "images": [rgb] }), "serve-field-refused");
    refused("/inference/v1/generate", &json!({ "token_ids": [15, 58] }), "image-count");
    // Nothing of these holds room that the next one needs.
    let answer = server.post("/v1/chat/completions", &chat(&json!([part(&rgb)])));
    assert_eq!(answer.status, 200, "{}", answer.body);

    let text = Server::start(&[GOLDEN, "--set", BYTES, "--set", LAST_MESSAGE]);
    let answer = text.post("/v1/chat/completions", &chat(&json!([part(&rgb)])));
    assert_eq!((answer.status, answer.error().0.as_str()), (400, "model-takes-no-images"), "{}", answer.body);
}

/// Serves files to everybody, by their names in `files`; `/moved` is elsewhere, and `/late` never comes.
fn file_server(files: Vec<(&'static str, Vec<u8>)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it has one");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("a request");
            let path = line.split(' ').nth(1).unwrap_or_default().to_string();
            let file = files.iter().find(|(name, _)| *name == path);
            let (status, body): (&str, &[u8]) = match file {
                Some((_, bytes)) => ("200 OK", bytes),
                None if path == "/moved" => ("302 Found\r\nLocation: /rgb.png", b""),
                None => ("404 Not Found", b""),
            };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // A client may have read enough.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    at
}

#[test]
fn an_image_is_fetched_from_hosts_that_were_named_and_from_no_others() {
    let (seeing, rgb) = (Seeing::new(), std::fs::read(image("rgb.png")).expect("a file"));
    let at =
        file_server(vec![("/rgb.png", rgb), ("/page", b"<html>".to_vec()), ("/large", vec![0; 10 << 20])]);
    let server = Server::start(&[
        &seeing.model,
        "--images=2",
        "--seed=5",
        "--prompt-tokens=48",
        "--max-new-tokens=8",
        &format!("--image-hosts=http://{at},http://localhost:{}", at.port()),
        "--set",
        LAST_MESSAGE,
    ]);
    let post = |url: &str| server.post("/v1/chat/completions", &chat(&json!([part(url)])));
    let fetched = post(&format!("http://{at}/rgb.png"));
    assert_eq!(drawn(&fetched.json()), drawn(&post(&file(&image("rgb.png"))).json()));
    for (url, slug, words) in [
        (format!("http://{at}/none.png"), "image-not-fetched", "status 404"),
        (format!("http://{at}/moved"), "image-not-fetched", "redirects are not followed"),
        (format!("http://{at}/page"), "image-format-unknown", ""),
        (format!("http://{at}/large"), "image-too-large", "bytes that are left"),
        // What a name leads to may be inside of a network.
        (format!("http://localhost:{}/rgb.png", at.port()), "image-not-fetched", "private network"),
        (format!("http://me:SECRET@{at}/rgb.png"), "image-url", "none that images are fetched from"),
        (format!("https://{at}/rgb.png"), "image-url", ""),
        ("http://127.0.0.1:1/rgb.png".into(), "image-url", ""),
        ("file:///etc/passwd".into(), "image-url", ""),
    ] {
        let answer = post(&url);
        assert_eq!((answer.status, answer.error().0.as_str()), (400, slug), "{url}: {}", answer.body);
        assert!(answer.body.contains(words) && !answer.body.contains("SECRET"), "{url}: {}", answer.body);
    }
}
