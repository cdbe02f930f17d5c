//! `doctor --run`: reads another framework's launch file and this machine, and shows the plan of that run.

use crate::output;
use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, Error, Result, read_small_text};
use plimsoll_devices::card;
use plimsoll_memory::host::Host;
use plimsoll_stacks::{Known, Limits, STACKS, Setting, Stack, find, plan, preset_of, settings};
use std::path::Path;
use std::process::ExitCode;

/// Longest config.json that is read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Largest number of cards of a node.
const GPUS_MAX: u64 = 1024;

/// The flags of `doctor --run`.
#[derive(clap::Args)]
pub struct Flags {
    #[arg(long, help = run_help(), num_args = 2, value_names = ["STACK", "FILE"], conflicts_with_all = ["log", "self_test"], group = "settable")]
    pub run: Vec<String>,
    /// The framework's version, if the file does not pin it.
    #[arg(long, value_name = "VERSION", requires = "run")]
    stack_version: Option<String>,
    /// A config.json, its folder, or a preset, for models whose shape is not known.
    #[arg(long, value_name = "PATH", requires = "run")]
    model_config: Option<String>,
    /// Another value for a setting of the file, or one that it lacks.
    #[arg(long, value_name = "KEY=VALUE", requires = "settable")]
    pub set: Vec<String>,
    /// An environment variable of the trainer.
    #[arg(long, value_name = "NAME=VALUE", requires = "run")]
    env: Vec<String>,
    /// Cards of a node.
    #[arg(long, value_name = "N", requires = "run")]
    gpus: Option<String>,
    /// Memory of a card.
    #[arg(long, value_name = "BYTES", requires = "run")]
    gpu_memory: Option<String>,
    /// Memory that the container allows.
    #[arg(long, value_name = "BYTES", requires = "run")]
    host_memory: Option<String>,
    /// Size of /dev/shm.
    #[arg(long, value_name = "BYTES", requires = "run")]
    shm: Option<String>,
    /// The kernel that it runs on, as 5.4.
    #[arg(long, value_name = "VERSION", requires = "run")]
    kernel: Option<String>,
}

fn run_help() -> String {
    let names = planned();
    let (last, others) = names.split_last().expect("there are stacks");
    format!("Plan a run of another framework from its launch file: {} or {last}", others.join(", "))
}

/// Prints the plan; exit code 1 if the run would not fit, or has a problem.
pub fn run(flags: &Flags, as_json: bool) -> Result<ExitCode> {
    let [stack, file] = flags.run.as_slice() else { unreachable!("clap takes two values") };
    let stack = stack_named(stack)?;
    let mut given = settings(stack, Path::new(file))?;
    for text in &flags.set {
        let (key, value) = pair(text, "--set")?;
        given.push(Setting::new(key, value, 0));
    }
    let limits = limits(flags)?;
    let models = |name: &str| shape_of(name, flags.model_config.as_deref());
    let planned = plan(stack, given, flags.stack_version.as_deref(), &limits, &models)?;
    output::either(as_json, &planned.to_json(), |_| planned.in_words())?;
    Ok(ExitCode::from(u8::from(planned.has_problem())))
}

/// Returns the names of the stacks whose runs are planned.
fn planned() -> Vec<&'static str> {
    STACKS.iter().filter(|stack| stack.is_planned()).map(|stack| stack.name).collect()
}

fn stack_named(name: &str) -> Result<&'static Stack> {
    find(name).filter(|stack| stack.is_planned()).ok_or_else(|| {
        let names = planned();
        let near = names.iter().min_by_key(|own| strsim::damerau_levenshtein(own, name));
        let near = near.filter(|own| strsim::damerau_levenshtein(own, name) <= 2);
        let error = Error::usage("bad-usage", format!("--run {name}: not a framework that is known"))
            .fact(format!("known: {}", names.join(", ")));
        match near {
            Some(near) => error.hint(format!("did you mean {near}?")),
            None => error.hint("plimsoll doctor --help shows what each takes"),
        }
    })
}

fn pair(text: &str, flag: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => {
            Err(Error::usage("bad-usage", format!("{flag} {text}: not KEY=VALUE"))
                .hint("write it as KEY=VALUE"))
        }
    }
}

/// Returns this machine's limits. If a flag names another machine, returns only limits given by hand: a laptop's memory
/// says nothing about a rented card.
fn limits(flags: &Flags) -> Result<Limits> {
    let given = [&flags.gpu_memory, &flags.host_memory, &flags.shm, &flags.gpus, &flags.kernel];
    let is_elsewhere = given.into_iter().any(Option::is_some);
    let mut limits = if is_elsewhere { Limits::default() } else { readings() };
    let hand = |flag: &str| format!("--{flag}");
    let bytes = |text: &Option<String>, flag: &str| -> Result<Option<Known<Bytes>>> {
        let Some(text) = text else { return Ok(None) };
        let value = Bytes::parse(text)?;
        if value.0 == 0 {
            return Err(Error::usage("bad-bytes", format!("--{flag} {text}: no bytes"))
                .hint("give what the machine has, as in 80GiB"));
        }
        Ok(Some(Known { value, source: hand(flag), by_hand: true }))
    };
    limits.gpu_bytes = bytes(&flags.gpu_memory, "gpu-memory")?.or(limits.gpu_bytes);
    limits.host_bytes = bytes(&flags.host_memory, "host-memory")?.or(limits.host_bytes);
    limits.shm_bytes = bytes(&flags.shm, "shm")?.or(limits.shm_bytes);
    if let Some(text) = &flags.gpus {
        let value = text.parse::<u64>().ok().filter(|count| (1..=GPUS_MAX).contains(count));
        let value = value.ok_or_else(|| {
            let message = format!("--gpus {text}: not a number of cards, 1 to {GPUS_MAX}");
            Error::usage("run-value-invalid", message).hint("give the cards of one node, as in --gpus 8")
        })?;
        limits.gpus = Some(Known { value, source: hand("gpus"), by_hand: true });
    }
    if let Some(text) = &flags.kernel {
        let value = kernel(text).ok_or_else(|| {
            Error::usage("run-value-invalid", format!("--kernel {text}: not a version"))
                .hint("give it as uname -r shows it, as in 5.4.0")
        })?;
        limits.kernel = Some(Known { value, source: hand("kernel"), by_hand: true });
    }
    for text in &flags.env {
        let (name, value) = pair(text, "--env")?;
        limits.variables.retain(|(own, _)| *own != name);
        limits.variables.push((name, Known { value, source: "--env".into(), by_hand: true }));
    }
    Ok(limits)
}

fn kernel(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Reads this machine's limits, each with its source.
fn readings() -> Limits {
    let here = Host::this().limits(Path::new("."));
    let (cards, card) = (device_files(), (card().probe)().ok());
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
    let variable = |name: &str| Some((name.to_string(), read(std::env::var(name).ok()?, "this environment")));
    let here_now =
        |limit: plimsoll_memory::Limit| read(limit.bytes, &format!("this machine, {}", limit.source));
    Limits {
        gpus: (cards > 0).then(|| read(cards, "this machine, /dev/nvidia*")),
        gpu_bytes: card.map(|card| read(card.total, "this machine, CUDA")),
        host_bytes: here.host.map(here_now),
        shm_bytes: here.shm.map(here_now),
        kernel: release.as_deref().and_then(kernel).map(|version| read(version, "this machine")),
        variables: names.into_iter().filter_map(variable).collect(),
    }
}

fn read<T>(value: T, source: &str) -> Known<T> {
    Known { value, source: source.into(), by_hand: false }
}

fn device_files() -> u64 {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let is_card = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_card)).count() as u64
}

/// Returns a model's shape, from a folder with a config.json, a known name, or `otherwise`. Fetches nothing.
fn shape_of(name: &str, otherwise: Option<&str>) -> Result<ModelSpec> {
    match (known_shape_of(name)?, otherwise) {
        (Some(spec), _) => Ok(spec),
        (None, Some(given)) => given_shape(given),
        (None, None) => Err(Error::usage("run-model-unknown", format!("the shape of `{name}` is not known"))
            .fact("it is no folder with a config.json here, and no published name of a known shape")
            .hint("give its config.json, or a preset of its shape: --model-config PATH")
            .hint("nothing is fetched: download config.json alone if the model is elsewhere")),
    }
}

/// Returns the shape of a folder or of a published name, if it is known.
fn known_shape_of(name: &str) -> Result<Option<ModelSpec>> {
    let folder = Path::new(name).join("config.json");
    if folder.is_file() { from_config(&folder).map(Some) } else { Ok(preset_of(name).map(|(_, spec)| spec)) }
}

/// Reads the shape that `--model-config` names.
fn given_shape(given: &str) -> Result<ModelSpec> {
    let path = Path::new(given);
    match (path.is_dir(), path.is_file()) {
        (true, _) => from_config(&path.join("config.json")),
        (_, true) => from_config(path),
        _ => preset_of(given).map(|(_, spec)| spec).ok_or_else(|| {
            let message = format!("--model-config {given}: neither a config.json nor a preset");
            Error::usage("run-model-unknown", message)
                .hint("plimsoll plan --table --models x lists the presets")
        }),
    }
}

fn from_config(path: &Path) -> Result<ModelSpec> {
    let unreadable = |words: String| {
        Error::usage("run-model-unknown", format!("{}: {words}", path.display()))
            .hint("give a readable config.json")
    };
    let text = read_small_text(path, CONFIG_BYTES_MAX).map_err(|err| unreadable(err.to_string()))?;
    let config = serde_json::from_str(&text).map_err(|err| unreadable(format!("not JSON: {err}")))?;
    plimsoll_files::spec_from_config(&config, &path.display().to_string())
}
