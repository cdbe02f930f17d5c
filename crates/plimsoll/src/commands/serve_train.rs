//! `serve MODEL --train FOLDER`: adapters that clients of Tinker's API train and sample.

use crate::listening::{listen, refused};
use crate::{output, signals};
use plimsoll_base::{Error, Exit, Result, read_small_text};
use plimsoll_config::VerbFile;
use plimsoll_memory::Pool;
use plimsoll_plan::PlanReport;
use plimsoll_tenants::{TenantServing, serve_tenants};
use plimsoll_tinker::{TinkerLimits, TokenTenants};
use signal_hook::consts::SIGINT;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Longest file of tenants.
const TENANTS_BYTES_MAX: u64 = 1 << 20;

/// Bytes of all tenants' requests that wait, and the least of one, which holds the largest request.
const PENDING_BYTES: usize = 1 << 30;
const PENDING_BYTES_MIN: usize = 64 << 20;

#[derive(clap::Args)]
pub struct TrainArgs {
    /// Let clients of Tinker's API train adapters of the model; the journal and all that they save go into this folder.
    #[arg(long, value_name = "FOLDER", help_heading = "Training")]
    pub train: Option<PathBuf>,
    /// Adapters that are trained at one time, each with gradients and states in the plan; more are parked on the disk.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=62), help_heading = "Training")]
    train_slots: u32,
    /// Saved adapters that are sampled at one time.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=62), help_heading = "Training")]
    sample_slots: u32,
    /// Highest rank of an adapter.
    #[arg(long, default_value_t = 32, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Training")]
    rank_max: u32,
    /// Tokens of prompt and response together; 4096, or the model's positions, unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..), help_heading = "Training")]
    context: Option<u32>,
    /// A file with a line `NAME TOKEN` for each tenant. Without it everyone who reaches this machine's loopback is one.
    #[arg(long, value_name = "FILE", help_heading = "Training")]
    tenants: Option<PathBuf>,
}

/// Where the server is, and how clients call the model.
pub struct At<'a> {
    pub model: &'a str,
    pub name: &'a str,
    pub bind: IpAddr,
    pub port: u16,
    /// Names that clients may use for this machine.
    pub hosts: &'a [String],
}

/// Serves until asked to stop.
///
/// Errors: those of the tenants' file and of serving.
pub fn run(of: &TrainArgs, at: At<'_>, verb: &VerbFile, folder: &Path, quiet: bool) -> Result<ExitCode> {
    let tenants = tenants(of, &at)?;
    // All tenants together have as much for what waits as four of them would have alone.
    let pending_bytes = (PENDING_BYTES / tenants.count()).max(PENDING_BYTES_MIN);
    let limits = TinkerLimits::default();
    let limits = TinkerLimits { pending_bytes: pending_bytes.min(limits.pending_bytes), ..limits };
    let stop = signals::install(None)?;
    let name = at.name.trim_end_matches('/').to_string();
    let (bind, port) = (at.bind, at.port);
    let mut ready = |report: &PlanReport, listener: &TcpListener| {
        let at = listener.local_addr().map_err(|err| refused(bind, port, &err))?;
        output::text(&format!("http://{at}\n"))?;
        output::note(quiet, &format!("training  {name}; {}; ctrl-c ends it", words(of, report)));
        Ok(())
    };
    serve_tenants(
        verb,
        TenantServing {
            name: name.clone(),
            tokenizer: tokenizer_of(at.model),
            context: of.context,
            slots: [of.train_slots, of.sample_slots],
            rank_max: of.rank_max,
            tenants,
            limits,
            folder: folder.to_path_buf(),
            listen: &mut || listen(bind, port),
            ready: &mut ready,
            stop: &stop,
        },
    )?;
    let exit = match stop.load(Ordering::SeqCst) {
        SIGINT => Exit::Interrupted,
        _ => Exit::Terminated,
    };
    Ok(ExitCode::from(exit as u8))
}

/// Refuses a flag about what this protocol does not have.
pub fn unfit(flag: &str) -> Error {
    let message = format!("{flag} is about chats, and --train serves the API of Tinker's clients alone");
    let instead = match flag {
        "--token-file" => "name the tokens with --tenants FILE",
        "--prompt-tokens" | "--max-new-tokens" => "--context N bounds prompt and response together",
        _ => "start a second server for chats",
    };
    Error::usage("contradictory-keys", message).hint(instead)
}

/// Reads who may train.
///
/// Errors: `serve-token-missing`, `bad-value`.
fn tenants(of: &TrainArgs, at: &At<'_>) -> Result<TokenTenants> {
    let Some(path) = &of.tenants else {
        if at.bind.is_loopback() {
            return TokenTenants::new(Vec::new(), at.hosts.to_vec());
        }
        let message = format!("--bind {}: others can reach this address, and there are no tokens", at.bind);
        return Err(Error::usage("serve-token-missing", message)
            .hint("--tenants FILE, with a line NAME TOKEN for each: echo \"ada tml-$(openssl rand -hex 16)\" > FILE"));
    };
    let text = read_small_text(path, TENANTS_BYTES_MAX).map_err(|err| Error::io("bad-value", path, &err))?;
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => {}
            [name, token] => all.push((token.to_string(), name.to_string())),
            _ => {
                let message = format!("{}, line {}: a line is NAME TOKEN", path.display(), number + 1);
                return Err(Error::usage("bad-value", message));
            }
        }
    }
    if all.is_empty() {
        return Err(Error::usage("bad-value", format!("{}: it names no tenant", path.display())));
    }
    TokenTenants::new(all, at.hosts.to_vec())
}

/// Returns what clients load the tokenizer from: a folder, or a name of the hub.
fn tokenizer_of(model: &str) -> Option<String> {
    if let Some(name) = model.strip_prefix("hf:") {
        return Some(name.to_string());
    }
    let path = std::fs::canonicalize(model).ok().filter(|path| path.is_dir())?;
    path.to_str().map(str::to_string)
}

fn words(of: &TrainArgs, report: &PlanReport) -> String {
    let engine = &report.shape.engine;
    format!(
        "{} adapters trained and {} sampled at one time, rank up to {}; {} responses at one time, {} tokens each; {} planned",
        of.train_slots,
        of.sample_slots,
        of.rank_max,
        engine.samples,
        engine.context(),
        report.plan.layout.sum(|region| region.pool != Pool::Disk),
    )
}
