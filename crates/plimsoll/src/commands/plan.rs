//! `plan RUN`: every region, the peak of each pool, the verdict, and changes that would make it fit.

use super::layers::Sets;
use crate::{limits, output, report};
use plimsoll_base::Result;
use plimsoll_rl::plan::{PlanReport, parse_limits, plan_run, smallest_limits};
use plimsoll_rl::runfile::Loaded;
use plimsoll_rl::train::run_dir_path;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// The flags of `plan`.
#[derive(clap::Args)]
#[command(after_help = "\
Exit code: 0 if the run fits, 3 if it does not.

Examples:
  plimsoll plan runs/first.toml
  plimsoll plan runs/first.toml --min
  plimsoll plan runs/first.toml --limit host=8GiB --set train.micro_batch_tokens=4096")]
pub struct Args {
    /// The run file.
    run: PathBuf,
    #[command(flatten)]
    sets: Sets,
    /// Plan for another machine: host=8GiB,disk=100GiB.
    #[arg(long, value_name = "POOL=BYTES,...")]
    limit: Option<String>,
    /// Where each value came from, and what was chosen for `auto`.
    #[arg(long)]
    explain: bool,
    /// The smallest limits under which the run fits.
    #[arg(long, conflicts_with_all = ["limit", "explain"])]
    min: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the plan; the exit code is the verdict.
pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let loaded = args.sets.load(&args.run, quiet)?;
    if args.min {
        return smallest(&loaded, args.json);
    }
    let limits = args.limit.as_deref().map(parse_limits).transpose()?;
    let planned = plan_run(&loaded.run, limits)?;
    // A plan for another machine has nothing to do with this one's limits.
    let machine = args.limit.is_none().then(|| limits::read(&run_dir_path(&loaded)));
    let settings = args.explain.then(|| settings(&loaded, &planned));
    match args.json {
        true => {
            let mut object = planned.to_json();
            if let Some(settings) = settings {
                object["settings"] = settings.iter().map(Setting::to_json).collect();
            }
            if let Some(machine) = machine {
                object["limits"] = limits::to_json(&machine);
            }
            output::json(&object)?;
        }
        false => {
            if let Some(machine) = machine {
                output::text(&limits::table(&machine))?;
            }
            if let Some(settings) = settings {
                output::text(&table(&settings))?;
            }
            output::text(&planned.table())?;
        }
    }
    match planned.refuse() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Ok(report::print(&error)),
    }
}

/// Prints the smallest limits of a run.
fn smallest(loaded: &Loaded, json: bool) -> Result<ExitCode> {
    let found = smallest_limits(&loaded.run)?;
    match json {
        true => output::json(&serde_json::to_value(found).expect("numbers have a JSON form")),
        false => output::text(&format!(
            "host    {} ({} bytes)\ndevice  {} ({} bytes)\n",
            found.min_host_bytes, found.min_host_bytes.0, found.min_device_bytes, found.min_device_bytes.0
        )),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// One line of `--explain`.
struct Setting {
    key: String,
    value: String,
    origin: String,
}

impl Setting {
    fn to_json(&self) -> Value {
        json!({ "key": self.key, "value": self.value, "origin": self.origin })
    }
}

/// The run file's values, with what the planner chose in place of `auto`.
fn settings(loaded: &Loaded, planned: &PlanReport) -> Vec<Setting> {
    let resolved = serde_json::to_value(planned.resolved).expect("numbers and names have a JSON form");
    let one = |setting: plimsoll_rl::runfile::Setting| {
        let name = setting.key.rsplit('.').next().unwrap_or_default();
        match resolved.get(name).filter(|_| setting.value == "\"auto\"") {
            Some(chosen) => {
                Setting { key: setting.key, value: chosen.to_string(), origin: "auto: the planner".into() }
            }
            None => Setting { key: setting.key, value: setting.value, origin: setting.origin },
        }
    };
    loaded.settings().into_iter().map(one).collect()
}

fn table(settings: &[Setting]) -> String {
    let widest = |length: fn(&Setting) -> usize| settings.iter().map(length).max().unwrap_or(0).min(40);
    let (key_width, value_width) =
        (widest(|setting| setting.key.len()), widest(|setting| setting.value.len()));
    let mut text: String = settings
        .iter()
        .map(|Setting { key, value, origin }| format!("{key:key_width$}  {value:value_width$}  {origin}\n"))
        .collect();
    text.push('\n');
    text
}
