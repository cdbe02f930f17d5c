//! `serve RUN-or-MODEL`: answers requests over HTTP until it is asked to stop.

use super::layers::{Sets, flag, run_file_of, run_file_of_model, text_flag};
use super::serve_train::{self, At, TrainArgs, unfit};
use crate::listening::{listen, refused};
use crate::{output, signals};
use plimsoll_base::{Error, Exit, Result, shown};
use plimsoll_config::{Auto, Loaded, Origin, Provenance, TrainedKind, VerbFile};
use plimsoll_infer::serve::{Serving, clients_bytes, prefix_words, serve};
use plimsoll_infer::side_adapters::NamedAdapter;
use plimsoll_memory::Pool;
use plimsoll_plan::PlanReport;
use plimsoll_serve::ImageHosts;
use plimsoll_serve::guard::{self, Guard};
use signal_hook::consts::SIGINT;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TOKEN_VARIABLE: &str = "PLIMSOLL_SERVE_TOKEN";

#[derive(clap::Args)]
#[command(after_help = "\
Memory is planned before the port is opened; a request that does not fit is refused with the plan's numbers. SIGINT and
SIGTERM let running responses end (exit codes 130 and 143); a second one ends the server at once.

Examples:
  plimsoll serve builtin:nano
  plimsoll serve runs/out/first                          the newest checkpoint of a run, with the run's template
  plimsoll serve hf:Qwen/Qwen2.5-0.5B-Instruct --port 8000
  plimsoll serve hf:Qwen/Qwen2.5-0.5B-Instruct --train adapters    for clients of Tinker's API
  PLIMSOLL_SERVE_TOKEN=$(openssl rand -hex 16) plimsoll serve M --bind 0.0.0.0 --host gpu7.lab")]
pub struct Args {
    /// A directory, file.gguf, hf:org/name, pypi:package, builtin:nano or random:PRESET; or a run file or the directory
    /// of a run.
    #[arg(value_name = "RUN-or-MODEL")]
    model: String,
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    port: u16,
    /// The address to listen on. Other than loopback, a token is needed.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    bind: IpAddr,
    /// A file whose first line is the token that requests must bring; PLIMSOLL_SERVE_TOKEN may hold it instead.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A name that clients may use for this machine, in addition to its addresses.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Another name of the model for clients; may be repeated.
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// An adapter of the model that requests may name: NAME=FOLDER; may be repeated.
    #[arg(long = "adapter", value_name = "NAME=FOLDER")]
    adapters: Vec<String>,
    /// Responses at one time; 32 on a CPU and 256 on a GPU unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    sequences: Option<u32>,
    /// Responses that may wait; more are refused with status 429.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    queue: u32,
    /// Images that are held at one time, each of the largest size, of a model that takes such; 0 serves text.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    images: u32,
    /// Hosts from which images may be fetched that requests name by an address: HOST[,HOST], by https; http://HOST by
    /// http.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    image_hosts: Vec<String>,
    /// Forms that responses may be held to at one time (JSON schemas, regular expressions, choices, grammars, forced
    /// calls), each with 52 MiB and 256 masks in the plan; 0 takes none.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    grammars: u32,
    /// Tokens that the plan has for a prompt, besides those of the response.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: Option<u32>,
    /// Longest response in tokens.
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<u32>,
    /// A system message for conversations that have none.
    #[arg(long)]
    system: Option<String>,
    /// The seed of all random numbers; a request may bring one of its own.
    #[arg(long)]
    seed: Option<u64>,
    /// How long running responses have when the server is asked to stop.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    grace: u32,
    /// Wait after every GPU kernel, check indices and values, and name what is wrong.
    #[arg(long)]
    checked: bool,
    #[command(flatten)]
    training: TrainArgs,
    #[command(flatten)]
    sets: Sets,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    if let Some(folder) = &args.training.train {
        return train(args, folder, quiet);
    }
    let token = token(args)?;
    let image_hosts = image_hosts(args)?;
    let Settings { verb, is_length_open, is_run } = settings(args, quiet)?;
    let stop = signals::install(None)?;
    let names: Vec<String> =
        std::iter::once(args.model.trim_end_matches('/').to_string()).chain(args.names.clone()).collect();
    let shown = names.join(", ");
    let mut ready = |report: &PlanReport, listener: &TcpListener| {
        let at = listener.local_addr().map_err(|err| refused(args.bind, args.port, &err))?;
        output::text(&format!("http://{at}/v1\n"))?;
        output::note(
            quiet,
            &format!("serving   {shown}; {}; ctrl-c ends it", words(args.queue, is_run, report)),
        );
        Ok(())
    };
    let serving = Serving {
        adapters: named_adapters(args, &names)?,
        names,
        is_length_open,
        queue: args.queue as usize,
        images: args.images as usize,
        grammars: args.grammars as usize,
        image_hosts,
        grace: Duration::from_secs(u64::from(args.grace)),
        guard: Guard { token, hosts: args.hosts.clone() },
        listen: &mut || listen(args.bind, args.port),
        ready: &mut ready,
        stop: &stop,
    };
    serve(&verb, serving)?;
    let exit = match stop.load(Ordering::SeqCst) {
        SIGINT => Exit::Interrupted,
        _ => Exit::Terminated,
    };
    Ok(ExitCode::from(exit as u8))
}

/// Serves clients that train adapters.
fn train(args: &Args, folder: &Path, quiet: bool) -> Result<ExitCode> {
    let given = [
        ("--adapter", !args.adapters.is_empty()),
        ("--images", args.images > 0),
        ("--image-hosts", !args.image_hosts.is_empty()),
        ("--prompt-tokens", args.prompt_tokens.is_some()),
        ("--max-new-tokens", args.max_new_tokens.is_some()),
        ("--system", args.system.is_some()),
        ("--token-file", args.token_file.is_some()),
    ];
    if let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(unfit(flag));
    }
    let name = args.names.first().unwrap_or(&args.model);
    let at = At { model: &args.model, name, bind: args.bind, port: args.port, hosts: &args.hosts };
    serve_train::run(&args.training, at, &settings(args, quiet)?.verb, folder, quiet)
}

/// Returns the adapters that requests may name.
///
/// Errors: `bad-value` for one without a name or a folder, and for a name that is taken.
fn named_adapters(args: &Args, names: &[String]) -> Result<Vec<NamedAdapter>> {
    let mut all: Vec<NamedAdapter> = Vec::new();
    for given in &args.adapters {
        let bad = |what: &str| Error::usage("bad-value", format!("--adapter {:?}: {what}", shown(given)));
        let parts = given.split_once('=').filter(|(name, folder)| !name.is_empty() && !folder.is_empty());
        let (name, folder) = parts.ok_or_else(|| bad("it is written as NAME=FOLDER"))?;
        let is_taken = names.iter().map(String::as_str).chain(all.iter().map(|of| of.name.as_str()));
        if is_taken.into_iter().any(|taken| taken == name) {
            return Err(bad("another model of this server has that name"));
        }
        all.push(NamedAdapter { name: name.to_string(), folder: folder.into() });
    }
    Ok(all)
}

/// Returns the token that requests must bring: none on loopback, unless one is given.
///
/// Errors: `serve-token-missing`, `bad-value`.
fn token(args: &Args) -> Result<Option<String>> {
    if let Some(path) = &args.token_file {
        return guard::token_of(path).map(Some);
    }
    match std::env::var_os(TOKEN_VARIABLE) {
        Some(token) => guard::checked_token(TOKEN_VARIABLE, &token.to_string_lossy()).map(Some),
        None if args.bind.is_loopback() => Ok(None),
        None => {
            let message =
                format!("--bind {}: others can reach this address, and there is no token", args.bind);
            Err(Error::usage("serve-token-missing", message)
                .hint(format!(
                    "{TOKEN_VARIABLE}=$(openssl rand -hex 16) plimsoll serve ..., or --token-file FILE"
                ))
                .hint("or listen on this machine alone, and reach it through ssh -L"))
        }
    }
}

/// Returns the hosts from which images may be fetched.
///
/// Errors: `bad-value`, `contradictory-keys`.
fn image_hosts(args: &Args) -> Result<Arc<ImageHosts>> {
    if args.images == 0 && !args.image_hosts.is_empty() {
        return Err(Error::usage(
            "contradictory-keys",
            "--image-hosts is about images, and this server reads text",
        )
        .hint("add --images N, or remove --image-hosts"));
    }
    ImageHosts::of(&args.image_hosts).map(Arc::new)
}

/// Settings from flags, `--set` and the run.
struct Settings {
    verb: VerbFile,
    /// True if the length of responses is left open.
    is_length_open: bool,
    /// True if the lengths are those of a run.
    is_run: bool,
}

/// Returns the settings: flags and `--set`, and those of the run if the model is one of a run.
///
/// Errors: those of reading a run file; `serve-not-a-language-model`.
fn settings(args: &Args, quiet: bool) -> Result<Settings> {
    let flags = [
        flag("rollout.sequences_max", args.sequences),
        flag("data.prompt_tokens_max", args.prompt_tokens),
        flag("rollout.max_new_tokens", args.max_new_tokens),
        text_flag("data.system_prompt", args.system.as_deref()),
        flag("seed", args.seed),
        flag("run.checked", args.checked.then_some(true)),
    ];
    let flags: Vec<String> = flags.into_iter().flatten().collect();
    let path = Path::new(&args.model);
    let of_dir = run_file_of(path);
    let is_run_dir = of_dir.is_some();
    let is_run_file = path.is_file() && path.extension().is_some_and(|end| end == "toml");
    if !is_run_dir && !is_run_file {
        let flags = [text_flag("model", Some(&args.model)).into_iter().collect(), flags].concat();
        let loaded = args.sets.load_verb(&[], run_file_of_model(&args.model).as_deref(), flags, quiet)?;
        let is_length_open = is_default(&loaded.provenance);
        return Ok(Settings { verb: loaded.verb, is_length_open, is_run: false });
    }
    let sets = Sets { sets: [flags, args.sets.sets.clone()].concat() };
    let Loaded { mut run, provenance, .. } = sets.load(of_dir.as_deref().unwrap_or(path), quiet)?;
    if run.trains() != TrainedKind::LanguageModel {
        let message = format!("{} trains a policy for an environment, which reads no tokens", args.model);
        return Err(
            Error::usage("serve-not-a-language-model", message).hint("serve a run of a language model")
        );
    }
    let adapter = run.lora.and_then(|lora| lora.adapter);
    let model = if is_run_dir {
        path.join("checkpoints/latest").display().to_string()
    } else {
        adapter.unwrap_or(run.model)
    };
    // Choices of a training plan are written into the directory as if the user had set them.
    let is_chosen = |key: &str| is_run_dir && matches!(provenance.of(key), Origin::File { .. });
    if is_chosen("rollout.sequences_max") {
        run.rollout.sequences_max = Auto::Auto;
    }
    if is_chosen("rollout.kv_blocks") {
        run.rollout.kv_blocks = Auto::Auto;
    }
    // It was about the run's reference or teacher; an adapter says what its base is kept in.
    if is_chosen("model_options.quantize") {
        run.model_options.quantize = Auto::Auto;
    }
    let verb = VerbFile {
        seed: run.seed,
        model,
        model_options: run.model_options,
        data: run.data,
        rollout: run.rollout,
        reward: Vec::new(),
        memory: run.memory,
        eval: run.eval,
        run: run.run,
    };
    Ok(Settings { verb, is_length_open: is_default(&provenance), is_run: true })
}

fn is_default(provenance: &Provenance) -> bool {
    *provenance.of("rollout.max_new_tokens") == Origin::Default
}

/// Returns words on what fits, where the lengths come from, and how to get longer ones.
fn words(queue: u32, is_run: bool, report: &PlanReport) -> String {
    let engine = &report.shape.engine;
    let (context, positions) = (engine.context(), report.shape.spec.max_positions as usize);
    let whose = if is_run { " (the lengths of the run)" } else { "" };
    let longer = if context < positions {
        format!("; --prompt-tokens N and --max-new-tokens N allow more, up to the model's {positions} in all")
    } else if is_run {
        "; --max-new-tokens N allows longer responses".to_string()
    } else {
        String::new()
    };
    format!(
        "{} responses at one time and {queue} waiting, {context} tokens each, {} of them new{whose}{longer}; {}; {} \
         planned, {} of it for clients",
        engine.samples,
        engine.new_tokens,
        prefix_words(report),
        report.plan.layout.sum(|region| region.pool != Pool::Disk),
        clients_bytes(report),
    )
}
