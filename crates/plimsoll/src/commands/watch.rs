//! `watch RUN_DIR...` shows runs live in a browser, writes the page as a file, or exports event files for TensorBoard.

use crate::listening::{listen, refused};
use crate::output;
use crate::watch::live::Runs;
use crate::watch::{server, tensorboard, whole_page};
use plimsoll_base::{Error, Result};
use plimsoll_files::write_atomic;
use plimsoll_serve::guard::{self, Guard};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs that are named when the server starts.
const NAMED_MAX: usize = 8;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll watch runs/out/first
  plimsoll watch runs/out/first runs/out/first-ppo      two runs in the same charts
  plimsoll watch sweep                                  every run below a folder, in a table
  plimsoll watch --static first.html runs/out/first     one file to share
  plimsoll watch --export tensorboard tb runs/out/first

The server answers only this machine; from another one: ssh -L 1876:localhost:1876 HOST. `/metrics` is for Prometheus.")]
pub struct Args {
    /// Directories of runs, finished or being written, or folders with such directories below them.
    #[arg(required = true, value_name = "RUN_DIR")]
    runs: Vec<PathBuf>,
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 1876, value_name = "PORT")]
    port: u16,
    /// The address to listen on. Other than loopback, a token is needed to see the page.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    bind: IpAddr,
    /// A file whose first line is the token to use; by default a new one is printed.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A name that browsers may use for this machine, in addition to its addresses.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Write the page as one file that opens from disk, then exit.
    #[arg(long = "static", value_name = "OUT.html", conflicts_with_all = ["export", "port", "bind", "token_file", "hosts"])]
    out: Option<PathBuf>,
    /// Write the numbers for another program, then exit: `tensorboard` and a folder.
    #[arg(long, num_args = 2, value_names = ["FORMAT", "DIR"], conflicts_with_all = ["port", "bind", "token_file", "hosts"])]
    export: Vec<String>,
}

/// Serves until the process ends, or writes a file.
pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    args.out.as_deref().map_or(Ok(()), plimsoll_files::check_output_file)?;
    let runs = Runs::open(&args.runs)?;
    if let Some(out) = &args.out {
        runs.read_all();
        write_atomic(out, whole_page(&runs).as_bytes())?;
        output::note(quiet, &format!("written   {}", out.display()));
    } else if let [format, dir] = args.export.as_slice() {
        export(&runs, format, dir, quiet)?;
    } else {
        serve(args, runs, quiet)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the runs, or counts them if there are many.
fn in_words(runs: &Runs) -> String {
    let names: Vec<String> = runs.each().take(NAMED_MAX).map(|run| run.name.clone()).collect();
    let more = match runs.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match runs.left_out() {
        0 => format!("{}{more}", names.join(", ")),
        left_out => format!("{}{more}, the latest; {left_out} earlier ones are left out", names.join(", ")),
    }
}

fn export(runs: &Runs, format: &str, dir: &str, quiet: bool) -> Result<()> {
    if format != "tensorboard" {
        return Err(Error::usage("bad-value", format!("--export {format}: it can be tensorboard"))
            .hint("plimsoll watch --export tensorboard DIR RUN_DIR"));
    }
    for run in runs.each() {
        let (path, records) = tensorboard::export(&run.dir, &run.name, dir.as_ref())?;
        output::note(quiet, &format!("written   {}, {records} records", path.display()));
    }
    Ok(())
}

fn serve(args: &Args, runs: Runs, quiet: bool) -> Result<()> {
    let token = match &args.token_file {
        Some(path) => Some(guard::token_of(path)?),
        None if args.bind.is_loopback() => None,
        None => Some(guard::new_token()?),
    };
    let listener = listen(args.bind, args.port)?;
    let refused = |err: io::Error| refused(args.bind, args.port, &err);
    let at = listener.local_addr().map_err(refused)?;
    let query = token.as_ref().map(|token| format!("?token={token}")).unwrap_or_default();
    output::text(&format!("http://{at}/{query}\n"))?;
    output::note(quiet, &format!("watching  {}; ctrl-c ends this, and no run", in_words(&runs)));
    server::serve(Arc::new(runs), listener, Guard { token, hosts: args.hosts.clone() }).map_err(refused)
}
