//! `checkpoint push`: uploads a checkpoint to a repository of the hub, with a model card, the curves and the run file.

use crate::{card, output, terminal};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_files::{Push, PushContent, PushFile, PushTarget, digest, push, push_endpoint, record_of};
use plimsoll_run::checkpoint::{Published, published};
use serde_json::json;
use std::path::PathBuf;

/// Files of the run that go with the model.
const CARD: &str = "README.md";
const CURVES: &str = "curves.svg";
const RUN_FILE: &str = "run.toml";
const TOKEN_VARIABLE: &str = "HF_TOKEN";

#[derive(clap::Args)]
#[command(after_help = "\
The token is taken from HF_TOKEN or from where `hf auth login` stores it; HF_ENDPOINT names another hub.
A repository is made private, unless --public is given; one that everyone can read is refused without it.

Examples:
  plimsoll checkpoint push runs/out/first hf:org/name --create --dry-run
  plimsoll checkpoint push runs/out/first hf:org/name --create
  plimsoll checkpoint push runs/out/first/checkpoints/best hf:org/name@candidate")]
pub struct Args {
    /// A run directory, a checkpoint, or a folder that `checkpoint export` made.
    dir: PathBuf,
    /// The repository: hf:org/name or hf:org/name@BRANCH.
    target: String,
    /// Make the repository if there is none.
    #[arg(long)]
    create: bool,
    /// Everyone may read it.
    #[arg(long)]
    public: bool,
    /// Leave the repository's README.md as it is.
    #[arg(long)]
    no_card: bool,
    /// Print what would be sent, and send nothing.
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: &Args, as_json: bool, quiet: bool) -> Result<()> {
    let target = PushTarget::parse(&args.target)?;
    let endpoint = push_endpoint()?;
    check_way(&endpoint, std::env::var(TOKEN_VARIABLE).ok().as_deref())?;
    let found = published(&args.dir)?;
    let files = files(&found, &target, args.no_card)?;
    let summary = match found.step {
        Some(step) => format!("Step {step}, by Plimsoll {}", env!("CARGO_PKG_VERSION")),
        None => format!("By Plimsoll {}", env!("CARGO_PKG_VERSION")),
    };
    let wish = Push { target, files, create: args.create, public: args.public, summary };
    let plan = plan_text(&wish, &found, &endpoint);
    if args.dry_run {
        return output::either(as_json, &plan_value(&wish, &found)?, |_| plan);
    }
    output::note(quiet, plan.trim_end());
    let live = terminal::live_line(quiet);
    let mut progress = |done: Bytes, all: Bytes| {
        if let Some(live) = &live {
            live.show(&format!("{done} of {all} sent to {}", wish.target));
        }
    };
    let pushed = push(&wish, &mut progress);
    live.iter().for_each(terminal::LiveLine::finish);
    let pushed = pushed?;
    let value = json!({
        "from": found.folder, "to": wish.target.to_string(), "step": found.step, "commit": pushed.commit, "url": pushed.url,
        "sent_bytes": pushed.sent, "already_there_bytes": pushed.already_there,
    });
    output::either(as_json, &value, |_| {
        format!(
            "{} at commit {}: {}\n{} of weights and other large files sent, {} were there\n",
            wish.target, pushed.commit, pushed.url, pushed.sent, pushed.already_there
        )
    })
}

/// Refuses endpoints and tokens that cannot work: another kind of address, or a token that is not a valid header.
fn check_way(endpoint: &str, token: Option<&str>) -> Result<()> {
    if !["https://", "http://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        let message =
            format!("HF_ENDPOINT = {endpoint}: the address of a hub begins with https:// or http://");
        return Err(
            Error::usage("push-rejected", message).hint("unset HF_ENDPOINT, and the usual hub is meant")
        );
    }
    let is_plain = |token: &str| token.bytes().all(|byte| byte.is_ascii_graphic());
    match token.map(str::trim).filter(|token| !is_plain(token)) {
        None => Ok(()),
        Some(_) => {
            let message = format!(
                "{TOKEN_VARIABLE} holds a space, a line break or another character that no token has"
            );
            Err(Error::usage("push-refused", message)
                .hint("copy the token again, as one line: `hf auth token` prints it"))
        }
    }
}

/// Returns the model's files, then the card, the curves and the run file.
fn files(found: &Published, target: &PushTarget, no_card: bool) -> Result<Vec<PushFile>> {
    let of_model = found.files.iter().map(|(name, record)| PushFile {
        path: name.clone(),
        content: PushContent::File(found.folder.join(name)),
        bytes: record.bytes,
        sha256: record.sha256.clone(),
    });
    let mut files: Vec<PushFile> = of_model.collect();
    let curves = found.run.as_ref().map(|run| run.join(CURVES)).filter(|path| path.is_file());
    let record = curves.as_ref().and_then(|path| record_of(path).ok());
    let has_card = files.iter().any(|file| file.path == CARD);
    if !no_card && !has_card {
        let name = target.repo.rsplit('/').next().unwrap_or_default();
        files.push(text(CARD, card::card(found, name, record.is_some())));
    }
    if let (Some(path), Some(record)) = (curves, record) {
        let (bytes, sha256) = (record.bytes, record.sha256);
        files.push(PushFile { path: CURVES.into(), content: PushContent::File(path), bytes, sha256 });
    }
    files.extend(found.run_file.clone().map(|content| text(RUN_FILE, content)));
    Ok(files)
}

fn text(path: &str, content: String) -> PushFile {
    let (bytes, sha256) = (content.len() as u64, digest(content.as_bytes()));
    PushFile { path: path.into(), content: PushContent::Text(content), bytes, sha256 }
}

fn plan_text(wish: &Push, found: &Published, endpoint: &str) -> String {
    let kind = match (wish.create, wish.public) {
        (true, true) => "made if there is none, for everyone to read",
        (true, false) => "made if there is none, private",
        (false, true) => "which must be there, and everyone may read",
        (false, false) => "which must be there and be private",
    };
    let mut text = format!("{} at {endpoint}, {kind}, from {}\n", wish.target, found.folder.display());
    for file in &wish.files {
        text += &format!("{:>12}  {}\n", Bytes(file.bytes).to_string(), file.path);
    }
    text + &format!("{:>12}  in {} files\n", total(wish).to_string(), wish.files.len())
}

fn plan_value(wish: &Push, found: &Published) -> Result<serde_json::Value> {
    let file = |file: &PushFile| json!({ "path": file.path, "bytes": file.bytes, "sha256": file.sha256 });
    Ok(json!({
        "from": found.folder, "to": wish.target.to_string(), "endpoint": push_endpoint()?, "step": found.step,
        "create": wish.create, "public": wish.public, "bytes": total(wish),
        "files": wish.files.iter().map(file).collect::<Vec<_>>(),
    }))
}

fn total(wish: &Push) -> Bytes {
    Bytes(wish.files.iter().map(|file| file.bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sent_is_refused_before_it_is_tried() {
        for (endpoint, token, expect) in [
            ("https://hub.example", Some(" hf_abc\n"), None),
            ("http://127.0.0.1:8080", None, None),
            ("ftp://x", Some("hf_abc"), Some(("push-rejected", "ftp://x"))),
            ("hub.example", None, Some(("push-rejected", "begins with https://"))),
            ("https://hub.example", Some("hf_a\nb"), Some(("push-refused", "HF_TOKEN holds"))),
            ("https://hub.example", Some("hf_ä"), Some(("push-refused", "HF_TOKEN holds"))),
        ] {
            match (check_way(endpoint, token), expect) {
                (Ok(()), None) => {}
                (Err(error), Some((slug, words))) => {
                    assert!(error.slug == slug && error.message.contains(words), "{error}");
                }
                (found, _) => panic!("{endpoint} {token:?}: {found:?}"),
            }
        }
    }
}
