//! Uploads to a repository of the Hugging Face hub by its library's protocol: asks which files are large (`preupload`),
//! sends those by Git LFS (`objects/batch`, whole or in parts), then makes one commit of all. Skips what the hub has,
//! so a broken push resumes. Streams files. Sends the token to the endpoint only, and puts it in no message.

use crate::hub::Hub;
use crate::hub_wire::{Wire, refused_by};
use crate::source::{is_repo, is_revision};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use plimsoll_base::{Bytes, Error, Result, open_regular, shown_address};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Most files per `preupload` request.
const PREUPLOAD_FILES_MAX: usize = 256;
/// Bytes at the start of a file from which the hub decides whether it is text.
const SAMPLE_BYTES: u64 = 512;
/// Most bytes of files inside the commit itself; the request's body is a third larger.
const INLINE_BYTES_MAX: u64 = 16 << 20;
/// Most parts of one file; S3 allows no more.
const PARTS_MAX: u64 = 10_000;
/// Attempts per file, each with new addresses from the hub, because they expire.
const ADDRESSES_MAX: u32 = 3;

/// A repository of models, as `hf:org/name` or `hf:org/name@BRANCH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTarget {
    /// `org/name`.
    pub repo: String,
    pub branch: String,
}

impl PushTarget {
    /// Reads a name.
    ///
    /// Errors: `push-target-invalid`.
    pub fn parse(text: &str) -> Result<PushTarget> {
        let name = text.strip_prefix("hf:").unwrap_or_default();
        let (repo, branch) = name.split_once('@').unwrap_or((name, "main"));
        if is_repo(repo) && is_revision(branch) {
            return Ok(PushTarget { repo: repo.into(), branch: branch.into() });
        }
        Err(Error::usage("push-target-invalid", format!("`{text}` is no repository of the hub"))
            .hint("write hf:org/name, or hf:org/name@BRANCH"))
    }
}

impl fmt::Display for PushTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.branch.as_str() {
            "main" => write!(f, "hf:{}", self.repo),
            branch => write!(f, "hf:{}@{branch}", self.repo),
        }
    }
}

/// The content of a file.
#[derive(Clone, Debug)]
pub enum PushContent {
    File(PathBuf),
    Text(String),
}

#[derive(Clone, Debug)]
pub struct PushFile {
    /// Its path in the repository.
    pub path: String,
    pub content: PushContent,
    pub bytes: u64,
    /// SHA-256 of all of it, in hex.
    pub sha256: String,
}

/// A push that has not begun.
#[derive(Debug)]
pub struct Push {
    pub target: PushTarget,
    pub files: Vec<PushFile>,
    /// Creates the repository if it does not exist.
    pub create: bool,
    /// Allows a repository that everyone may read.
    pub public: bool,
    /// The first line of the commit.
    pub summary: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    pub commit: String,
    /// Its address in a browser.
    pub url: String,
    /// Bytes of large files that were sent, and that the hub already had.
    pub sent: Bytes,
    pub already_there: Bytes,
}

/// Returns the address of the hub from HF_ENDPOINT, without a name and password in it.
///
/// Errors: those of finding the home folder.
pub fn push_endpoint() -> Result<String> {
    Ok(shown_address(&Hub::from_env()?.endpoint))
}

/// Uploads the files of `push` and commits them. `progress` gets the bytes of large files sent so far, and their total.
///
/// Errors: `push-refused`, `push-repo-missing`, `push-public`, `push-conflict`, `push-too-large`, `push-rate-limited`,
/// `push-interrupted`, `push-rejected`, `hub-unreachable`.
pub fn push(push: &Push, progress: &mut dyn FnMut(Bytes, Bytes)) -> Result<Pushed> {
    push_with(&Wire::new(Hub::from_env()?)?, push, progress)
}

pub(crate) fn push_with(wire: &Wire, push: &Push, progress: &mut dyn FnMut(Bytes, Bytes)) -> Result<Pushed> {
    ready(wire, push)?;
    let large = preupload(wire, push)?;
    let is_large = |file: &&PushFile| large.iter().any(|one| one.0 == file.path && one.1 == Mode::Large);
    let all: u64 = push.files.iter().filter(is_large).map(|file| file.bytes).sum();
    let (mut sent, mut there) = (0, 0);
    for file in push.files.iter().filter(is_large) {
        let before = sent + there;
        let mut count = |bytes: u64| progress(Bytes(before + bytes), Bytes(all));
        if upload(wire, push, file, &mut count)? {
            sent += file.bytes
        } else {
            there += file.bytes
        }
        progress(Bytes(sent + there), Bytes(all));
    }
    let commit = commit(wire, push, &large)?;
    let PushTarget { repo, .. } = &push.target;
    let url = format!("{}/{repo}", shown_address(wire.endpoint()));
    Ok(Pushed { commit, url, sent: Bytes(sent), already_there: Bytes(there) })
}

/// Requires that the repository exists with the intended visibility, or creates it.
fn ready(wire: &Wire, push: &Push) -> Result<()> {
    let repo = &push.target.repo;
    let (status, answer) = wire.get(&format!("/api/models/{repo}"))?;
    match status {
        200 if answer["private"] == json!(false) && !push.public => {
            return Err(Error::usage("push-public", format!("hf:{repo} can be read by everyone"))
                .hint("give --public if that is meant, or make it private on the hub, or name another one"));
        }
        200 => return Ok(()),
        404 if push.create => {}
        404 => {
            return Err(Error::new(
                "push-repo-missing",
                format!("hf:{repo}: there is no such repository, or the token may not see it"),
            )
            .hint("give --create, which makes a private one; with --public everyone can read it"));
        }
        _ => return Err(refused_by(wire, "the repository", status, &answer)),
    }
    let (org, name) = repo.split_once('/').expect("a repository has two parts");
    let wish = json!({ "type": "model", "organization": org, "name": name, "private": !push.public });
    match wire.post("/api/repos/create", &wish)? {
        (200..=299, _) => Ok(()),
        (status, answer) => Err(refused_by(wire, "making the repository", status, &answer)),
    }
}

/// How the hub expects a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Inline,
    Large,
    Ignored,
}

/// Asks how to send each file; the answer is in the order of the files.
fn preupload(wire: &Wire, push: &Push) -> Result<Vec<(String, Mode)>> {
    let PushTarget { repo, branch } = &push.target;
    let path = format!("/api/models/{repo}/preupload/{}", branch.replace('/', "%2F"));
    let mut modes = Vec::with_capacity(push.files.len());
    for files in push.files.chunks(PREUPLOAD_FILES_MAX) {
        let one = |file: &PushFile| {
            let mut sample = Vec::new();
            let mut reader = opened(file, 0, file.bytes.min(SAMPLE_BYTES))?;
            reader.read_to_end(&mut sample).map_err(|err| unreadable(file, &err))?;
            Ok(json!({ "path": file.path, "size": file.bytes, "sample": BASE64.encode(&sample) }))
        };
        let wish = json!({ "files": files.iter().map(one).collect::<Result<Vec<Value>>>()? });
        let answer = match wire.post(&path, &wish)? {
            (200..=299, answer) => answer,
            (status, answer) => return Err(refused_by(wire, "asking how files are sent", status, &answer)),
        };
        let given = answer["files"].as_array().cloned().unwrap_or_default();
        for file in files {
            let found = given.iter().find(|one| one["path"] == json!(file.path));
            let mode = match found.map(|one| (one["shouldIgnore"] == json!(true), one["uploadMode"].as_str()))
            {
                Some((true, _)) => Mode::Ignored,
                Some((false, Some("lfs"))) => Mode::Large,
                Some((false, Some("regular"))) => Mode::Inline,
                _ => return Err(wire.strange("the answer does not say how each file is sent")),
            };
            modes.push((file.path.clone(), mode));
        }
    }
    Ok(modes)
}

/// Uploads a large file; false if the hub has it already.
fn upload(wire: &Wire, push: &Push, file: &PushFile, count: &mut dyn FnMut(u64)) -> Result<bool> {
    let mut last = String::new();
    for _ in 0..ADDRESSES_MAX {
        let Some(actions) = batch(wire, push, file)? else { return Ok(false) };
        let action = &actions["upload"];
        let Some(href) = action["href"].as_str() else {
            return Err(wire.strange("an upload has no address"));
        };
        wire.require_safe(href)?;
        let done = match action["header"]["chunk_size"].as_str().map(str::parse::<u64>) {
            None => wire
                .put(href, &action["header"], file.bytes, &|| opened(file, 0, file.bytes), count)?
                .map(drop),
            Some(Ok(size)) if size > 0 => parts(wire, href, &action["header"], file, size, count)?,
            Some(_) => return Err(wire.strange("an upload's chunk_size is no number of bytes")),
        };
        match done {
            Ok(()) => return verify(wire, &actions, file).map(|()| true),
            Err(status) if status == 413 => {
                return Err(refused_by(wire, &file.path, status, &Value::Null));
            }
            // Addresses expire: request new ones.
            Err(status) => last = format!("the store answered {status}"),
        }
    }
    Err(wire.interrupted(&file.path, &last, ADDRESSES_MAX))
}

/// Requests the address for a large file; `None` if the hub has it.
fn batch(wire: &Wire, push: &Push, file: &PushFile) -> Result<Option<Value>> {
    let PushTarget { repo, branch } = &push.target;
    let wish = json!({
        "operation": "upload",
        "transfers": ["basic", "multipart"],
        "hash_algo": "sha256",
        "ref": { "name": branch },
        "objects": [{ "oid": file.sha256, "size": file.bytes }],
    });
    let answer = match wire.post_lfs(&format!("/{repo}.git/info/lfs/objects/batch"), &wish)? {
        (200..=299, answer) => answer,
        (status, answer) => return Err(refused_by(wire, &file.path, status, &answer)),
    };
    let object = &answer["objects"][0];
    if let Some(code) = object["error"]["code"].as_u64() {
        let code = u16::try_from(code).unwrap_or(0);
        return Err(refused_by(wire, &file.path, code, &object["error"]));
    }
    if object["oid"] != json!(file.sha256) {
        return Err(wire.strange("the answer is about another file"));
    }
    Ok(object.get("actions").filter(|actions| actions["upload"].is_object()).cloned())
}

/// Sends a file in parts, each to its own address, then completes the upload. The inner error is the store's answer.
fn parts(
    wire: &Wire,
    href: &str,
    header: &Value,
    file: &PushFile,
    size: u64,
    count: &mut dyn FnMut(u64),
) -> Result<std::result::Result<(), u16>> {
    let num_parts = file.bytes.div_ceil(size);
    if num_parts > PARTS_MAX {
        return Err(wire.strange("an upload has too many parts"));
    }
    let addresses: Vec<(u64, &str)> = header
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.parse().ok()?, value.as_str()?)))
        .collect();
    let mut etags = Vec::new();
    for part in 1..=num_parts {
        let Some((_, address)) = addresses.iter().find(|(number, _)| *number == part) else {
            return Err(wire.strange("an upload lacks the address of a part"));
        };
        wire.require_safe(address)?;
        let from = (part - 1) * size;
        let mut count = |bytes: u64| count(from + bytes);
        let bytes = size.min(file.bytes - from);
        match wire.put(address, &Value::Null, bytes, &|| opened(file, from, bytes), &mut count)? {
            Ok(Some(etag)) => etags.push(json!({ "partNumber": part, "etag": etag })),
            Ok(None) => return Err(wire.strange("the store gave a part no etag")),
            Err(status) => return Ok(Err(status)),
        }
    }
    let (status, _) = wire.post_lfs_to(href, &json!({ "oid": file.sha256, "parts": etags }))?;
    Ok(if (200..=299).contains(&status) { Ok(()) } else { Err(status) })
}

/// Confirms the upload of a file, if the hub asks for it.
fn verify(wire: &Wire, actions: &Value, file: &PushFile) -> Result<()> {
    let Some(href) = actions["verify"]["href"].as_str() else { return Ok(()) };
    wire.require_safe(href)?;
    match wire.post_lfs_to(href, &json!({ "oid": file.sha256, "size": file.bytes }))? {
        (200..=299, _) => Ok(()),
        (status, answer) => Err(refused_by(wire, &file.path, status, &answer)),
    }
}

/// Commits all files; returns the commit.
fn commit(wire: &Wire, push: &Push, modes: &[(String, Mode)]) -> Result<String> {
    let mut body =
        json!({ "key": "header", "value": { "summary": push.summary, "description": "" } }).to_string();
    let mut inline = 0;
    for (file, (_, mode)) in push.files.iter().zip(modes) {
        let line = match mode {
            Mode::Ignored => continue,
            Mode::Large => {
                let PushFile { path, bytes, sha256, .. } = file;
                json!({ "key": "lfsFile", "value": { "path": path, "algo": "sha256", "oid": sha256, "size": bytes } })
            }
            Mode::Inline => {
                inline += file.bytes;
                if inline > INLINE_BYTES_MAX {
                    let limit = Bytes(INLINE_BYTES_MAX);
                    return Err(wire.strange(&format!("more than {limit} would be within the commit itself")));
                }
                let mut content = Vec::new();
                let read = opened(file, 0, file.bytes)?.read_to_end(&mut content);
                read.map_err(|err| unreadable(file, &err))?;
                json!({ "key": "file", "value": { "path": file.path, "encoding": "base64", "content": BASE64.encode(&content) } })
            }
        };
        body.push('\n');
        body += &line.to_string();
    }
    body.push('\n');
    let PushTarget { repo, branch } = &push.target;
    let path = format!("/api/models/{repo}/commit/{}", branch.replace('/', "%2F"));
    match wire.post_lines(&path, &body)? {
        (200..=299, answer) => {
            let is_commit = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
            let commit = answer["commitOid"].as_str().filter(is_commit);
            commit.map(str::to_string).ok_or_else(|| wire.strange("the answer names no commit"))
        }
        (status, answer) => Err(refused_by(wire, "the commit", status, &answer)),
    }
}

/// Opens `bytes` bytes of a file's content, from `from` on.
///
/// Errors: `push-file-unreadable`.
fn opened(file: &PushFile, from: u64, bytes: u64) -> Result<Box<dyn Read>> {
    match &file.content {
        PushContent::Text(text) => {
            let mut reader = Cursor::new(text.clone().into_bytes());
            reader.set_position(from);
            Ok(Box::new(reader.take(bytes)))
        }
        PushContent::File(path) => {
            let open = || {
                let mut reader = open_regular(path)?;
                reader.seek(SeekFrom::Start(from))?;
                Ok(reader)
            };
            open()
                .map(|reader| Box::new(reader.take(bytes)) as Box<dyn Read>)
                .map_err(|err| unreadable(file, &err))
        }
    }
}

fn unreadable(file: &PushFile, err: &io::Error) -> Error {
    Error::new("push-file-unreadable", format!("{}: {err}", file.path))
        .hint("run the command again when nothing else changes the checkpoint")
}

#[cfg(test)]
#[path = "hub_push_tests.rs"]
mod tests;
