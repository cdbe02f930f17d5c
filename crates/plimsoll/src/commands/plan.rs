//! `plan RUN`: every region, the peak of each pool, the verdict, and changes that would make it fit.

use super::layers::Sets;
use super::plan_images;
use crate::{errors, limits, output};
use plimsoll_agent::collecting::{Stop, plan_env};
use plimsoll_agent::plan::AgentPlan;
use plimsoll_agent::settings::AgentSettings;
use plimsoll_base::{Bytes, Error, Result, read_small_text};
use plimsoll_config::{Loaded, Offload, RunSpec, Setting, TrainedKind, hindrance_to_carry, is_env_file};
use plimsoll_devices::{Card, named};
use plimsoll_memory::{Limits, Pool};
use plimsoll_plan::carry::ResponseLengths;
use plimsoll_plan::grid::{self, Grid, plan_grid};
use plimsoll_plan::measured::{Measured, plan_of_run};
use plimsoll_plan::rent::{Market, table as table_of_offers};
use plimsoll_plan::{Hosts, PlanReport, Prices, duration, parse_limits, svg};
use plimsoll_ranks::RANKS_MAX;
use plimsoll_rl::data::epochs;
use plimsoll_rl::data::session::{Machine, plan_run, plan_run_with, rent, smallest_limits};
use plimsoll_run::ending::run_dir_path;
use plimsoll_run::run_dir::obstacle;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Longest run file of a run's directory.
const RUN_FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest file of prices.
const PRICES_BYTES_MAX: u64 = 1 << 16;

#[derive(clap::Args)]
#[command(after_help = "\
It makes the checks of `train` that take seconds at most, and a line `not checked` names the others.
Exit code: 0 if the run fits, 3 if it does not.

Examples:
  plimsoll plan runs/first.toml
  plimsoll plan runs/first.toml --min
  plimsoll plan runs/first.toml --svg plan.svg
  plimsoll plan runs/qwen2.5-7b-grpo.toml --card h100 --ranks 1,2,4,8
  plimsoll plan runs/qwen2.5-7b-grpo.toml --card h100 --hosts 1,2,8,32,128 --ranks-per-host 8 --network 45GB/s
  plimsoll plan runs/qwen2.5-7b-grpo.toml --rent --price h100=2.1,h200=3.2
  plimsoll plan runs/first.toml --lengths lognormal:6,0.9
  plimsoll plan run.toml --images --set data.images=images
  plimsoll plan --table --models qwen2.5-0.5b,qwen2.5-7b --limit host=64GiB
  plimsoll plan --svg measured.svg --run runs/out/first
  plimsoll plan runs/first.toml --limit host=8GiB --set train.micro_batch_tokens=4096")]
pub struct Args {
    /// The run file, or an environment file of `collect`.
    #[arg(required_unless_present_any = ["of_run", "table"])]
    run: Option<PathBuf>,
    #[command(flatten)]
    sets: Sets,
    /// Plan for another machine: host=8GiB,disk=100GiB.
    #[arg(long, value_name = "POOL=BYTES,...")]
    limit: Option<String>,
    #[command(flatten)]
    spread: Spread,
    /// Plan for a card: l4, a10, 3090, 4090, 5090, l40s, a100-40, a100, h100-pcie, h100, h200, b200, or its numbers:
    /// flops=150e12,bandwidth=900GB,memory=24GiB,link=64GB.
    #[arg(long, value_name = "CARD", conflicts_with_all = ["min", "table", "of_run", "rent"])]
    card: Option<String>,
    /// Plan 1 to 8 of each card, and two and four hosts with 8, and show what the run takes on those that it fits on,
    /// the cheapest first.
    #[arg(long, group = "over_hosts", conflicts_with_all = ["min", "table", "of_run", "explain", "svg", "ranks", "hosts"])]
    rent: bool,
    /// What an hour of a card costs: h100=2.1,h200=3.2, or a file with a line for each, h100 = 2.1.
    #[arg(long, value_name = "CARD=PRICE,... or FILE", requires = "rent")]
    price: Option<String>,
    /// Plan for a host with this memory, short for --limit host=BYTES.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["limit", "min", "table", "of_run"])]
    host_memory: Option<String>,
    /// Show what `async.partial_rollouts` would bring if responses had these lengths: lognormal:MEDIAN,SIGMA, or the
    /// directory of an earlier run.
    #[arg(long, value_name = "LENGTHS", conflicts_with_all = ["min", "table", "of_run", "rent"])]
    lengths: Option<String>,
    /// Read, decode and count the images of the run's data instead: their tokens, the largest row, and what is wrong.
    #[arg(long, conflicts_with_all = ["min", "table", "of_run", "rent", "card", "limit", "host_memory", "lengths", "explain", "svg", "ranks", "hosts"])]
    images: bool,
    /// Show where each value came from and what was chosen for `auto`.
    #[arg(long)]
    explain: bool,
    /// Show the smallest limits under which the run fits.
    #[arg(long, conflicts_with_all = ["limit", "explain", "svg"])]
    min: bool,
    /// Show the peaks of a grid of models, contexts and methods; a run file sets everything else.
    #[arg(long, conflicts_with_all = ["min", "explain", "svg", "of_run"])]
    table: bool,
    /// Models of the table (presets).
    #[arg(long, value_name = "PRESET,...", value_delimiter = ',', requires = "table")]
    models: Vec<String>,
    /// Tokens of a sequence, half prompt, half response.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', requires = "table", value_parser = clap::value_parser!(u32).range(2..))]
    contexts: Vec<u32>,
    /// Methods of the table.
    #[arg(long, value_name = "METHOD,...", value_delimiter = ',', requires = "table")]
    methods: Vec<String>,
    /// Draw memory over the phases of a step to a file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw the plan of a run directory, with what the run measured.
    #[arg(long = "run", value_name = "RUN_DIR", requires = "svg", conflicts_with_all = ["run", "limit", "explain", "sets"])]
    of_run: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the plan; the exit code is the verdict.
pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    args.svg.as_deref().map_or(Ok(()), plimsoll_files::check_output_file)?;
    if let (Some(dir), Some(file)) = (&args.of_run, &args.svg) {
        return draw_run(dir, file, args.json, quiet);
    }
    if let Some(path) = args.run.as_deref().filter(|path| is_env_file(path)) {
        return plan_environments(args, path, quiet);
    }
    let loaded = load(args, quiet)?;
    if let (true, Some(loaded)) = (args.images, &loaded) {
        return plan_images::run(&RunSpec::new(&loaded.run), args.json, quiet);
    }
    if args.table {
        return print_grid(args, loaded.as_ref());
    }
    let loaded = loaded.expect("clap asks for a run file, a run directory or a table");
    if args.card.is_some() || args.rent {
        let device = loaded.run.run.device.value();
        let is_host = device.is_some_and(|device| !named(device.name()).has_own_memory());
        if is_host || loaded.run.trains() == TrainedKind::Policy {
            let message = "the run computes on the processor, and a card was asked for";
            return Err(
                Error::usage("bad-usage", message).hint("add --set run.device=cuda, or leave the card out")
            );
        }
    }
    let lengths = lengths(args, &loaded)?;
    if loaded.run.plays_agents() && !args.spread.is_one() {
        return Err(Error::usage("ranks-method", "agents that own their loop play with one rank alone"));
    }
    if loaded.run.trains() == TrainedKind::Policy {
        if !args.spread.is_one() {
            return Err(Error::usage("ranks-method", "a policy in an environment trains on one rank alone"));
        }
        return plan_agent(args, &loaded, quiet);
    }
    if args.min {
        let found = smallest_limits(&RunSpec::new(&loaded.run))?;
        return print_smallest(found.min_host_bytes, found.min_device_bytes, args.json);
    }
    let limit = args.limit.clone().or(args.host_memory.as_ref().map(|bytes| format!("host={bytes}")));
    let limits = limit.as_deref().map(parse_limits).transpose()?;
    let run = RunSpec::new(&loaded.run);
    if args.rent {
        return print_offers(args, &run, limits.as_ref());
    }
    let card = args.card.as_deref().map(Card::parse).transpose()?;
    let spreads = args.spread.all()?;
    let machine = Machine { limits, card, hosts: spreads[0] };
    if spreads.len() > 1 {
        return print_ranks(args, &run, &machine, &spreads);
    }
    let (mut planned, gains) = plan_run_with(&run, &machine, lengths.as_ref())?;
    planned.warnings.extend(obstacle_here(args, &loaded));
    draw_plan(args, &loaded, &planned.to_json(), quiet)?;
    // A plan for another machine ignores this one's limits.
    let machine = is_for_here(args).then(|| limits::read(&run_dir_path(&loaded)));
    let settings = args.explain.then(|| settings(&loaded, &planned));
    let (mut object, mut table) = (planned.to_json(), planned.table());
    if let Some(gains) = gains {
        object["carry"] = json!(gains);
        table += &gains.table();
    }
    print_plan(args.json, object, &table, machine, settings)?;
    Ok(verdict(planned.refuse()))
}

/// Reads the run file, with the number of its steps. What counts images needs none.
fn load(args: &Args, quiet: bool) -> Result<Option<Loaded>> {
    let mut loaded = args.run.as_deref().map(|path| args.sets.load(path, quiet)).transpose()?;
    let steps = loaded.as_mut().filter(|_| !args.images);
    let words = steps.map(|loaded| epochs::resolve_for_plan(&mut loaded.run)).transpose()?.flatten();
    if let Some(words) = words {
        output::note(quiet, &words);
    }
    Ok(loaded)
}

/// Returns the lengths for which carried prompts are compared, if they are.
///
/// Errors: `bad-usage` for several numbers of ranks, and where no response can go on in a later step; those of
/// `ResponseLengths::of`.
fn lengths(args: &Args, loaded: &Loaded) -> Result<Option<ResponseLengths>> {
    let Some(text) = &args.lengths else { return Ok(None) };
    if args.spread.ranks.len() * args.spread.hosts.len() > 1 {
        return Err(Error::usage("bad-usage", "--lengths with several numbers of ranks or hosts")
            .hint("give one number of each"));
    }
    if let Some((with, why)) = hindrance_to_carry(&loaded.run) {
        let message =
            format!("--lengths compares async.partial_rollouts, which does not go with {with}, {why}");
        return Err(Error::usage("bad-usage", message).hint("leave --lengths out"));
    }
    ResponseLengths::of(text).map(Some)
}

/// Prints which numbers of ranks and hosts fit. Exit code: 0 if all do.
fn print_ranks(args: &Args, run: &RunSpec, machine: &Machine, spreads: &[Hosts]) -> Result<ExitCode> {
    let mut text = format!(
        "{:>5} {:>5} {:>12} {:>12} {:>12} {:>10} {:>12}  {}\n",
        "hosts", "ranks", "rank, each", "host, each", "card, each", "step", "run", "verdict"
    );
    let mut rates = String::new();
    let (mut rows, mut fit) = (Vec::new(), true);
    for &hosts in spreads {
        let planned = plan_run(run, &Machine { hosts, ..machine.clone() })?;
        let Hosts { ranks, count, near, .. } = hosts;
        let [host, card] = [Pool::Host, Pool::Device].map(|pool| planned.plan.peak(pool).peak);
        let all = Bytes(host.0 * near as u64);
        let verdict = if planned.fits { "fits" } else { "does not fit" };
        let [each, together, on_card] = [host, all, card].map(|bytes| bytes.to_string());
        let (step_s, run_s) = (planned.auto.chosen.predicted_step_s, planned.run_s());
        // If it does not fit, the times are those of the smallest setting, which does not run there.
        let [step, whole] = [step_s, run_s].map(|s| if planned.fits { duration(s) } else { "-".into() });
        text += &format!(
            "{count:>5} {ranks:>5} {each:>12} {together:>12} {on_card:>12} {step:>10} {whole:>12}  {verdict}\n"
        );
        rates.clone_from(&planned.auto.rates);
        fit &= planned.fits;
        rows.push(json!({
            "hosts": count,
            "ranks": ranks,
            "rank_bytes": host,
            "host_bytes": all,
            "card_bytes": card,
            "predicted_step_s": step_s,
            "predicted_run_s": run_s,
            "fits": planned.fits,
        }));
    }
    text += &format!("step and run: predicted, with every response at full length ({rates})\n");
    text += &assumed(spreads);
    output::either(args.json, &json!({ "ranks": rows, "rates": rates }), |_| text.clone())?;
    Ok(if fit { ExitCode::SUCCESS } else { ExitCode::from(plimsoll_base::Exit::DoesNotFit as u8) })
}

/// Returns the assumptions about hosts, if there are several.
fn assumed(spreads: &[Hosts]) -> String {
    let Some(several) = spreads.iter().find(|hosts| hosts.count > 1) else { return String::new() };
    let network = several.network / 1e9;
    let mut text = format!(
        "between hosts: {network} GB/s for each host in each direction, and 0.1 ms for all to meet; nothing runs next to it\n"
    );
    if spreads.iter().any(|hosts| hosts.ranks > RANKS_MAX as usize) {
        text += &format!(
            "more than {RANKS_MAX} ranks are arithmetic: this build trains on {RANKS_MAX} at most\n"
        );
    }
    text
}

/// How ranks are spread over hosts.
#[derive(Clone, Debug, clap::Args)]
struct Spread {
    /// Plan a run of N ranks, of all hosts together, which share their host's memory evenly: `train --ranks`. Several
    /// numbers give a table.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with_all = ["min", "table", "of_run"])]
    ranks: Vec<u32>,
    /// Plan a run on H hosts: `train --hosts`. Several numbers give a table.
    #[arg(long, group = "over_hosts", value_name = "H,...", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with_all = ["min", "table", "of_run", "rent"])]
    hosts: Vec<u32>,
    /// The ranks of each host, instead of --ranks.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with_all = ["ranks", "rent"])]
    ranks_per_host: Option<u32>,
    /// What each host sends to others in a second, and receives. Default: 10 Gbit/s.
    #[arg(long, value_name = "BYTES/s", requires = "over_hosts")]
    network: Option<String>,
}

impl Spread {
    /// True if one rank is planned, as without flags.
    fn is_one(&self) -> bool {
        self.ranks == [1] && self.hosts == [1] && self.ranks_per_host.is_none_or(|each| each == 1)
    }

    /// Returns the hosts to plan for: each number of hosts with each number of ranks.
    fn all(&self) -> Result<Vec<Hosts>> {
        let mut all = Vec::new();
        for &hosts in &self.hosts {
            let each = |ranks: &u32| {
                if ranks.is_multiple_of(hosts) {
                    Ok(ranks / hosts)
                } else {
                    Err(Error::usage(
                        "bad-usage",
                        format!("--ranks {ranks} are all ranks of {hosts} hosts, each with as many"),
                    )
                    .hint(format!("--ranks {}, or --ranks-per-host R", ranks.next_multiple_of(hosts))))
                }
            };
            let near: Vec<u32> = match self.ranks_per_host {
                Some(near) => vec![near],
                None => self.ranks.iter().map(each).collect::<Result<_>>()?,
            };
            for near in near {
                all.push(Hosts::even(hosts as usize, near as usize, self.network.as_deref())?);
            }
        }
        Ok(all)
    }
}

/// Prints what the run takes on each card of the table. Exit code: 0 if it fits on one of them.
fn print_offers(args: &Args, run: &RunSpec, limits: Option<&Limits>) -> Result<ExitCode> {
    // What one rank alone can do is planned for one.
    let one_rank = run.plays_agents() || run.memory.offloads(Offload::Optimizer);
    let host = limits.and_then(|limits| limits.host.as_ref());
    let prices = args.price.as_deref().map(prices_of).transpose()?.unwrap_or_default();
    let market = Market { one_rank, host, network: args.spread.network.as_deref(), prices };
    let offers = rent(run, &market)?;
    output::either(args.json, &json!({ "offers": offers }), |_| table_of_offers(&offers, &market))?;
    let fits = offers.iter().any(|offer| offer.fits);
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::from(plimsoll_base::Exit::DoesNotFit as u8) })
}

/// Reads prices as they are given, or from a file.
fn prices_of(text: &str) -> Result<Prices> {
    if text.contains('=') {
        return Prices::parse(text);
    }
    let path = Path::new(text);
    let unreadable = |err| {
        Error::io("io-error", path, &err)
            .near(path)
            .hint("give --price a file, or prices such as h100=2.1,h200=3.2")
    };
    let lines = read_small_text(path, PRICES_BYTES_MAX).map_err(unreadable)?;
    Prices::parse(&lines).map_err(|error| Error { message: format!("{text}: {}", error.message), ..error })
}

fn is_for_here(args: &Args) -> bool {
    args.limit.is_none() && args.host_memory.is_none() && args.card.is_none()
}

/// Returns what `train` would refuse about its directory, where the plan is for this machine.
fn obstacle_here(args: &Args, loaded: &Loaded) -> Option<String> {
    is_for_here(args).then(|| obstacle(&run_dir_path(loaded))).flatten()
}

fn verdict(refused: Result<()>) -> ExitCode {
    refused.map_or_else(|error| errors::print(&error), |()| ExitCode::SUCCESS)
}

/// Plans an environment policy, which has nothing to choose.
fn plan_agent(args: &Args, loaded: &Loaded, quiet: bool) -> Result<ExitCode> {
    let limits = args.limit.as_deref().map(parse_limits).transpose()?.unwrap_or_default();
    let run = RunSpec::new(&loaded.run);
    let mut planned = AgentPlan::new(&run, &AgentSettings::new(&run, &Stop::default())?, &limits)?;
    planned.warnings.extend(obstacle_here(args, loaded));
    if args.min {
        let host = planned.plan.peak(Pool::Host).peak;
        return print_smallest(host, Bytes(0), args.json);
    }
    draw_plan(args, loaded, &planned.to_json(), quiet)?;
    let machine = is_for_here(args).then(|| limits::read(&run_dir_path(loaded)));
    let settings = args.explain.then(|| loaded.settings());
    print_plan(args.json, planned.to_json(), &planned.table(), machine, settings)?;
    Ok(verdict(planned.refuse()))
}

/// Plans an environment file, which has nothing to choose.
fn plan_environments(args: &Args, path: &Path, quiet: bool) -> Result<ExitCode> {
    if args.table || args.min || args.explain || args.svg.is_some() || args.lengths.is_some() {
        let flags = "--table, --min, --explain, --svg and --lengths";
        return Err(Error::usage(
            "bad-usage",
            format!("{} is an environment file: {flags} are of run files", path.display()),
        )
        .hint("leave the flag out"));
    }
    let loaded = args.sets.load_env(path, quiet)?;
    let limits = args.limit.as_deref().map(parse_limits).transpose()?;
    let plan = plan_env(&loaded, limits, &Stop::default())?;
    output::either(args.json, &plan.to_json(), |_| plan.table())?;
    Ok(verdict(plan.refuse(&loaded.env)))
}

fn draw_plan(args: &Args, loaded: &Loaded, plan: &Value, quiet: bool) -> Result<()> {
    let Some(file) = &args.svg else { return Ok(()) };
    let title = title(loaded.run.method.name(), &loaded.run.model);
    write_svg(file, &svg::draw(plan, &title, &Measured::default()), quiet)
}

/// Prints a plan as one object or as tables.
fn print_plan(
    json: bool,
    mut object: Value,
    plan: &str,
    machine: Option<Vec<plimsoll_memory::host::Reading>>,
    settings: Option<Vec<Setting>>,
) -> Result<()> {
    if json {
        if let Some(settings) = settings {
            let row = |Setting { key, value, origin }: &Setting| json!({ "key": key, "value": value, "origin": origin });
            object["settings"] = settings.iter().map(row).collect();
        }
        if let Some(machine) = machine {
            object["limits"] = limits::to_json(&machine);
        }
        return output::json(&object);
    }
    if let Some(machine) = machine {
        output::text(&limits::table(&machine))?;
    }
    if let Some(settings) = settings {
        output::text(&table(&settings))?;
    }
    output::text(plan)
}

fn draw_run(dir: &Path, file: &Path, json: bool, quiet: bool) -> Result<ExitCode> {
    let (plan, measured) = (plan_of_run(dir)?, Measured::of_run(dir)?);
    let resolved = read_small_text(&dir.join("run.toml"), RUN_FILE_BYTES_MAX).unwrap_or_default();
    let value = |key: &str| {
        let line = resolved.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once('=')?.1.trim().trim_matches('"').to_string())
    };
    let title = match (value("method"), value("model")) {
        (Some(method), Some(model)) => title(&method, &model),
        _ => format!("memory of one step: {}", dir.display()),
    };
    write_svg(file, &svg::draw(&plan, &title, &measured), quiet)?;
    let phases: Vec<(&str, u64)> =
        measured.phases.iter().map(|(phase, bytes)| (phase.name(), *bytes)).collect();
    let by_name: Value = phases.iter().map(|&(name, bytes)| (name.to_string(), json!(bytes))).collect();
    let found = json!({ "measured_bytes": by_name, "measured_peak_bytes": measured.peak });
    let line = |(name, bytes)| format!("{name:<8} measured {}\n", Bytes(bytes));
    output::either(json, &found, |_| {
        phases.into_iter().chain(measured.peak.map(|peak| ("peak", peak))).map(line).collect()
    })?;
    Ok(ExitCode::SUCCESS)
}

fn title(method: &str, model: &str) -> String {
    format!("Memory of one step: {method} on {model}")
}

fn write_svg(file: &Path, drawing: &str, quiet: bool) -> Result<()> {
    plimsoll_files::write_atomic(file, drawing.as_bytes())?;
    output::note(quiet, &format!("drawn in {}", file.display()));
    Ok(())
}

/// Prints the grid, which has no verdict.
fn print_grid(args: &Args, base: Option<&Loaded>) -> Result<ExitCode> {
    let limits = args.limit.as_deref().map(parse_limits).transpose()?.unwrap_or_default();
    let Args { models, contexts, methods, .. } = args;
    let grid = Grid { models: models.clone(), contexts: contexts.clone(), methods: methods.clone() };
    let cells = plan_grid(base.map(|loaded| &loaded.run), &grid, &limits)?;
    output::either(args.json, &json!({ "rows": cells }), |_| grid::table(&cells))?;
    Ok(ExitCode::SUCCESS)
}

fn print_smallest(host: Bytes, device: Bytes, json: bool) -> Result<ExitCode> {
    let found = json!({ "min_host_bytes": host, "min_device_bytes": device });
    let words = format!("host    {host} ({} bytes)\ndevice  {device} ({} bytes)\n", host.0, device.0);
    output::either(json, &found, |_| words)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the run file's values, with the planner's choices for `auto`.
fn settings(loaded: &Loaded, planned: &PlanReport) -> Vec<Setting> {
    let resolved = serde_json::to_value(planned.resolved).expect("numbers and names have a JSON form");
    let one = |setting: Setting| {
        let name = setting.key.rsplit('.').next().unwrap_or_default();
        match resolved.get(name).filter(|_| setting.value == "\"auto\"") {
            Some(chosen) => {
                Setting { value: chosen.to_string(), origin: "auto: the planner".into(), ..setting }
            }
            None => setting,
        }
    };
    loaded.settings().into_iter().map(one).collect()
}

fn table(settings: &[Setting]) -> String {
    let widest = |length: fn(&Setting) -> usize| settings.iter().map(length).max().unwrap_or(0).min(40);
    let (key_width, value_width) =
        (widest(|setting| setting.key.len()), widest(|setting| setting.value.len()));
    let line = |Setting { key, value, origin }: &Setting| {
        format!("{key:key_width$}  {value:value_width$}  {origin}\n")
    };
    settings.iter().map(line).collect::<String>() + "\n"
}
