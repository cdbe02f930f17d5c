//! `doctor --ranks`: the ranks of a run measure their hosts' links; rank 0 prints what would end the run or slow it.

use super::layers::Sets;
use crate::survey::{Needs, checks, table};
use crate::{output, pages, ranks};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Exchange, Loaded, RunSpec, TrainedKind};
use plimsoll_devices as devices;
use plimsoll_doctor::machine::{Check, State};
use plimsoll_memory::Pool;
use plimsoll_plan::{Hosts, checkpoint_bytes};
use plimsoll_ranks::{Facts, Found, Hello, Launch, Notice, OF_A_CARD, RANKS_MAX, Token, Waiting};
use plimsoll_rl::data::epochs;
use plimsoll_rl::data::session::{Machine, plan_run, read_by};
use plimsoll_run::{ending, several};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The flags of `doctor --ranks`.
#[derive(clap::Args)]
pub struct RankFlags {
    /// Measure between the hosts of a run before it, started as `train` is: with N, the number of all ranks, or without
    /// it by a launcher. RUN_DIR is then a run file, if it is given.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", value_parser = clap::value_parser!(u32).range(0..=i64::from(RANKS_MAX)), conflicts_with_all = ["log", "self_test", "run"], group = "settable")]
    ranks: Option<u32>,
    /// Hosts, each of which is started with the same command and its --host-rank.
    #[arg(long, value_name = "H", requires = "ranks")]
    hosts: Option<u32>,
    /// Which of the hosts this is, from 0.
    #[arg(long, value_name = "h", requires = "ranks")]
    host_rank: Option<u32>,
    /// Where the others find the first host. Port 29500 unless it names another.
    #[arg(long, value_name = "ADDRESS[:PORT]", requires = "ranks")]
    join: Option<String>,
    /// How long the ranks wait for one another.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "ranks", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    join_seconds: u32,
}

impl RankFlags {
    pub fn is_meant(&self) -> bool {
        self.ranks.is_some()
    }

    fn part(&self) -> ranks::Part {
        let RankFlags { ranks, hosts, host_rank, join, .. } = self;
        ranks::Part {
            ranks: ranks.filter(|ranks| *ranks > 0),
            hosts: *hosts,
            host_rank: *host_rank,
            join: join.clone(),
        }
    }
}

/// Measures, as one of the ranks or as the process that starts them. `run`: the run file and its settings; `folder`:
/// where to write without a run file. Exit code 1 if something would refuse the run.
pub fn run(
    flags: &RankFlags,
    run: Option<(&Path, Sets)>,
    folder: &Path,
    as_json: bool,
    quiet: bool,
) -> Result<ExitCode> {
    let load = || -> Result<Option<Loaded>> {
        let mut loaded = run.map(|(path, sets)| sets.load(path, true)).transpose()?;
        if let Some(loaded) = &mut loaded {
            epochs::resolve_for_plan(&mut loaded.run)?;
        }
        Ok(loaded)
    };
    match ranks::found(&flags.part())? {
        Found::One => Err(Error::usage("bad-usage", "--ranks: one rank has nothing between itself and others")
            .hint("start it as `train`: with --ranks N, with --hosts H --host-rank h --join ADDRESS on each host, or by a launcher")),
        Found::Start(starts) => load().and_then(|_| ranks::start(&starts, quiet)).map(ExitCode::from),
        Found::Rank(launch) => one(&launch, flags, load()?.as_ref(), folder, as_json),
    }
}

/// Takes part as one rank.
fn one(
    launch: &Launch,
    flags: &RankFlags,
    loaded: Option<&Loaded>,
    folder: &Path,
    as_json: bool,
) -> Result<ExitCode> {
    plimsoll_ranks::die_with_launcher(launch.launcher)?;
    let needs = loaded.map(|loaded| needs(loaded, launch)).transpose()?.unwrap_or_default();
    let folder = loaded.map_or(PathBuf::from(folder), ending::run_dir_path);
    let card = loaded.map(|loaded| ranks::card_of(launch, loaded)).transpose()?.flatten();
    // Differences are findings here; `train` refuses such a rank.
    let mut own = vec![("command".to_string(), "doctor --ranks".to_string())];
    // It decides whether ranks may share a card.
    own.extend(loaded.map(several::alike).into_iter().flatten().filter(|(name, _)| name == OF_A_CARD));
    let hello = Hello::of_this_process(launch, card.as_ref().map(|card| card.uuid.clone()), own);
    let token = Token::of(launch, ranks::secret().as_deref())?;
    let mut say = |words: &str| output::note(false, words);
    // A signal ends this process: there is nothing to save.
    let notice = Notice::of(launch.launcher);
    let waiting = Waiting { seconds: flags.join_seconds, notice, stopped: &mut || None, say: &mut say };
    let met = plimsoll_ranks::meet(launch, &token, &hello, waiting)?;
    let mut alike = loaded.map_or_else(several::alike_processes, several::alike);
    let exchange = loaded.and_then(|loaded| loaded.run.run.exchange.value());
    // Before a trainer refuses it.
    if let Some(loaded) = loaded.filter(|loaded| loaded.run.trains() != TrainedKind::Policy) {
        alike.extend(read_by(&RunSpec::new(&loaded.run))?);
    }
    let mut link = None;
    if let Some(card) = card {
        // Cards of one host reach one another's memory themselves.
        if exchange != Some(Exchange::Sockets) {
            link = Some(devices::card_link(card.uuid));
        }
        alike.push(("card".into(), format!("{}, {}", card.name, card.total)));
        // Trainers of several hosts refuse another version, but only once all have begun.
        alike.push(("NCCL".into(), devices::nccl_version().unwrap_or_else(|_| "none".into())));
    }
    let facts = plimsoll_ranks::survey(&met, &folder, alike.into_iter().collect(), link)?;
    let mut checks = checks(&facts, &needs);
    checks.sort_by_key(|check| std::cmp::Reverse(check.state));
    let has_problem = checks.iter().any(|check| check.state == State::Problem);
    if launch.rank == 0 {
        show(&facts, &checks, has_problem, as_json)?;
    }
    // All have the same facts, so that all end with the same code.
    Ok(ExitCode::from(u8::from(has_problem)))
}

fn show(facts: &[Facts], checks: &[Check], has_problem: bool, as_json: bool) -> Result<()> {
    let object = |check: &Check| {
        let page = pages::page(check.slug).unwrap_or_default();
        check.to_json(&pages::why(page), &pages::remedies(page))
    };
    let objects: Vec<Value> = checks.iter().map(object).collect();
    let mut found = json!({ "problem": has_problem, "ranks": facts, "checks": objects });
    // Whole run files, whose differences the checks report.
    for rank in found["ranks"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        rank.remove("alike");
    }
    let rows = |_: &Value| table(facts) + "\n" + &checks.iter().map(pages::check_row).collect::<String>();
    output::either(as_json, &found, rows)
}

/// Returns a run's needs on each host, from its plan.
fn needs(loaded: &Loaded, launch: &Launch) -> Result<Needs> {
    let open_files = super::launch::open_files(loaded, u64::from(launch.local_ranks));
    if loaded.run.trains() == TrainedKind::Policy {
        return Ok(Needs { open_files, ..Needs::default() });
    }
    let hosts = launch.ranks / launch.local_ranks.max(1);
    let hosts = Hosts::even(hosts.max(1) as usize, launch.local_ranks as usize, None)?;
    let planned = plan_run(&RunSpec::new(&loaded.run), &Machine { limits: None, card: None, hosts })?;
    let shm = planned.plan.peak(Pool::Shm).peak.0 * u64::from(launch.local_ranks);
    let checkpoint =
        planned.shape.training.as_ref().map(|training| checkpoint_bytes(&planned.shape, training));
    let nccl = loaded.run.run.exchange.value() == Some(Exchange::Nccl);
    Ok(Needs { open_files, shm: Some(Bytes(shm)), checkpoint, nccl })
}
