//! `launch slurm|k8s|ssh|ray RUN`: files that start a run on several hosts, with what the plan says that a host holds.

use super::launch_submit::{Submit, check_tool, submit};
use super::layers::Sets;
use crate::output;
use plimsoll_base::{Bytes, Error, Result, read_small_text};
use plimsoll_config::{Loaded, RunSpec, TrainedKind};
use plimsoll_devices::Card;
use plimsoll_files::check_folder;
use plimsoll_launch::k8s::{Controller, K8s};
use plimsoll_launch::ray::Ray;
use plimsoll_launch::slurm::Slurm;
use plimsoll_launch::ssh::Ssh;
use plimsoll_launch::{EnvVar, File, HostNeeds, Job, RESTARTS_MAX, k8s, label_of, ray, slurm, ssh};
use plimsoll_memory::Pool;
use plimsoll_plan::{Hosts, PlanReport, parse_limits};
use plimsoll_ranks::RANKS_MAX;
use plimsoll_rl::data::epochs;
use plimsoll_rl::data::session::{Machine, plan_run};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The flags of `launch`.
#[derive(clap::Args)]
#[command(after_help = "\
It plans the run for its hosts and asks the launcher for what the plan says. It schedules nothing itself.
A job that fails is started again up to --restarts times, and goes on from its last checkpoint (`train --resume`), so the run's
directory, the run file and the binary are at the same place on all hosts.

Examples:
  plimsoll launch slurm run.toml --hosts 2 --ranks-per-host 8 --card h100 --sbatch qos=high --before modules.sh
  plimsoll launch k8s run.toml --hosts 2 --ranks-per-host 8 --card h100 --image registry.example/plimsoll:0.1 --claim project
  plimsoll launch ssh run.toml --hosts 2 --ranks-per-host 4 --host a --host b
  plimsoll launch ray run.toml --hosts 2 --ranks-per-host 8 --card h100 --submit")]
pub struct Args {
    #[command(subcommand)]
    launcher: Launcher,
}

#[derive(clap::Subcommand)]
enum Launcher {
    /// A batch script with one task a rank.
    Slurm {
        #[command(flatten)]
        common: Common,
        /// The partition.
        #[arg(long, value_name = "NAME")]
        partition: Option<String>,
        /// The account.
        #[arg(long, value_name = "NAME")]
        account: Option<String>,
        /// The job's time, as sbatch takes it: 4:00:00. The run saves before it is over, and goes on in a restart.
        #[arg(long, value_name = "TIME")]
        time: Option<String>,
        /// Another option of sbatch, without its dashes, once for each: qos=high, gres=gpu:h100:8, constraint=ib.
        #[arg(long, value_name = "OPTION")]
        sbatch: Vec<String>,
        /// Another option of srun, once for each: container-image=IMAGE, container-mounts=HERE:THERE.
        #[arg(long, value_name = "OPTION")]
        srun: Vec<String>,
        #[command(flatten)]
        before: Before,
    },
    /// Manifests of a JobSet or a PyTorchJob, one pod a host.
    #[command(visible_alias = "kubernetes")]
    K8s {
        #[command(flatten)]
        common: Common,
        /// What runs the pods.
        #[arg(long, value_enum, default_value = "jobset")]
        kind: Controlled,
        /// The image with the binary.
        #[arg(long)]
        image: String,
        /// The namespace.
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// A claim on a volume that all hosts mount at --workdir: the run file, its data, the run's directory.
        #[arg(long, value_name = "NAME")]
        claim: Option<String>,
        /// A merge patch in YAML for the job, and with `kind: PodTemplate` for its pods: labels, tolerations, secrets.
        #[arg(long, value_name = "FILE")]
        patch: Option<PathBuf>,
        #[command(flatten)]
        before: Before,
    },
    /// A script that starts the hosts by ssh.
    Ssh {
        #[command(flatten)]
        common: Common,
        /// A host, as ssh takes it. Once for each; without any the list is yours to fill in.
        #[arg(long = "host", value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        before: Before,
    },
    /// A script that submits a Ray job, which needs the package plimsoll-ray.
    Ray {
        #[command(flatten)]
        common: Common,
        /// Where Ray's job server listens [default: RAY_ADDRESS].
        #[arg(long, value_name = "URL")]
        address: Option<String>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Controlled {
    Jobset,
    Pytorchjob,
}

#[derive(clap::Args)]
struct Before {
    /// Lines of a shell before the command on each host, in --workdir: `module load cuda`, `. venv/bin/activate`.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Common {
    /// The run file, as the hosts find it from --workdir.
    run: PathBuf,
    #[command(flatten)]
    sets: Sets,
    /// Hosts.
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    hosts: u32,
    /// Ranks on each host; on cards one card each.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    ranks_per_host: u32,
    /// Plan for a card, as `plan --card`; without it for what is here.
    #[arg(long, value_name = "CARD")]
    card: Option<String>,
    /// Plan for hosts with this memory; without it for the memory that is here.
    #[arg(long, value_name = "BYTES")]
    host_memory: Option<String>,
    /// Cards that a host has: more ranks than that are refused.
    #[arg(long, value_name = "N")]
    cards_per_host: Option<u32>,
    /// Processors for each rank [default: 4 next to a card, else the run's threads or a part of this machine's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus_per_rank: Option<u32>,
    /// Name of the job [default: from the run file's name].
    #[arg(long)]
    name: Option<String>,
    /// Where the run starts on each host [default: this folder; with k8s /data].
    #[arg(long, value_name = "PATH")]
    workdir: Option<String>,
    /// The binary, as the hosts find it.
    #[arg(long, value_name = "PATH", default_value = "plimsoll")]
    program: String,
    /// Where host 0 listens, and one of the next eight [default: the launcher's own choice].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// How often a job that fails is started again.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=i64::from(RESTARTS_MAX)))]
    restarts: u32,
    /// A variable of the run's processes, once for each: --env NCCL_IB_HCA=mlx5.
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// A new folder for the files [default: launch-NAME-LAUNCHER].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Submit it too, by sbatch, kubectl, ray, or the script itself.
    #[arg(long)]
    submit: bool,
    /// Further options of `train`.
    #[arg(last = true, value_name = "TRAIN_OPTIONS")]
    train: Vec<String>,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let common = args.launcher.common();
    let (tool, folder) = (args.launcher.tool(), common.folder(args.launcher.name()));
    if common.submit {
        check_tool(tool)?;
    }
    check_new(&folder)?;
    let before = args.launcher.before()?;
    let job = Job { before, ..common.job(args.launcher.workdir()?, quiet)? };
    let files = args.launcher.files(&job)?;
    write(&folder, &files)?;
    for file in &files {
        output::note(quiet, &format!("{} is written", folder.join(&file.name).display()));
    }
    output::note(quiet, &needs_words(&job));
    let next = args.launcher.submits(&folder, &job);
    if common.submit {
        return submit(&next, quiet);
    }
    for (index, command) in next.iter().enumerate() {
        let before = if index == 0 { "next: " } else { "      " };
        output::note(quiet, &format!("{before}{}", command.shown()));
    }
    Ok(ExitCode::SUCCESS)
}

impl Launcher {
    fn common(&self) -> &Common {
        match self {
            Launcher::Slurm { common, .. }
            | Launcher::K8s { common, .. }
            | Launcher::Ssh { common, .. }
            | Launcher::Ray { common, .. } => common,
        }
    }

    /// Returns its name in folders.
    fn name(&self) -> &'static str {
        match self {
            Launcher::Slurm { .. } => "slurm",
            Launcher::K8s { .. } => "k8s",
            Launcher::Ssh { .. } => "ssh",
            Launcher::Ray { .. } => "ray",
        }
    }

    /// Returns the lines before the command. Ray starts its ranks without a shell.
    fn before(&self) -> Result<String> {
        let file = match self {
            Launcher::Slurm { before, .. } | Launcher::K8s { before, .. } | Launcher::Ssh { before, .. } => {
                before.before.as_deref()
            }
            Launcher::Ray { .. } => None,
        };
        file.map_or(Ok(String::new()), read_own)
    }

    /// Returns the program that submits.
    fn tool(&self) -> &'static str {
        match self {
            Launcher::Slurm { .. } => "sbatch",
            Launcher::K8s { .. } => "kubectl",
            Launcher::Ssh { .. } => "ssh",
            Launcher::Ray { .. } => "ray",
        }
    }

    fn workdir(&self) -> Result<String> {
        if let Some(given) = &self.common().workdir {
            return Ok(given.clone());
        }
        if let Launcher::K8s { .. } = self {
            return Ok("/data".into());
        }
        let here = std::env::current_dir().map_err(|err| Error::io("io-error", Path::new("."), &err))?;
        here.into_os_string().into_string().map_err(|path| {
            Error::usage("launch-word", format!("the name of this folder is not UTF-8: {}", path.display()))
                .hint("give --workdir")
        })
    }

    fn files(&self, job: &Job) -> Result<Vec<File>> {
        match self {
            Launcher::Slurm { partition, account, time, sbatch, srun, .. } => {
                let slurm = Slurm {
                    partition: partition.clone(),
                    account: account.clone(),
                    time: time.clone(),
                    sbatch: sbatch.clone(),
                    srun: srun.clone(),
                };
                slurm::files(job, &slurm)
            }
            Launcher::K8s { kind, image, namespace, claim, patch, .. } => {
                let k8s = K8s {
                    controller: kind.controller(),
                    image: image.clone(),
                    namespace: namespace.clone(),
                    claim: claim.clone(),
                    token: new_token()?,
                    patch: patch.as_deref().map(read_own).transpose()?,
                };
                let of_file = |error: Error| match patch {
                    Some(path) if error.slug == "launch-patch" => {
                        Error { message: format!("{}: {}", path.display(), error.message), ..error }
                    }
                    _ => error,
                };
                k8s::files(job, &k8s).map_err(of_file)
            }
            Launcher::Ssh { names, .. } => ssh::files(job, &Ssh { hosts: names.clone() }),
            Launcher::Ray { address, .. } => ray::files(job, &Ray { address: address.clone() }),
        }
    }

    /// Returns the commands that submit the files, in order.
    fn submits(&self, folder: &Path, job: &Job) -> Vec<Submit> {
        let path = |name: &str| folder.join(name).display().to_string();
        match self {
            Launcher::Slurm { .. } => vec![Submit::tool(&["sbatch", &path(&format!("{}.sbatch", job.name))])],
            Launcher::K8s { kind, .. } => {
                let apply = |file: &str| Submit::tool(&["kubectl", "apply", "-f", &path(file)]);
                // Asked first, so that no Secret is left if the job cannot be created.
                let asked = Submit::asked(
                    &["kubectl", "apply", "--dry-run=server", "-f", &path("job.yaml")],
                    kind.controller(),
                );
                vec![asked, apply("secret.yaml"), apply("job.yaml")]
            }
            Launcher::Ssh { .. } => vec![Submit::script(&["sh", &path("start.sh")])],
            Launcher::Ray { .. } => vec![Submit::script(&["sh", &path("submit.sh")])],
        }
    }
}

impl Controlled {
    fn controller(self) -> Controller {
        match self {
            Controlled::Jobset => Controller::JobSet,
            Controlled::Pytorchjob => Controller::PyTorchJob,
        }
    }
}

impl Common {
    fn name(&self) -> String {
        let stem = self.run.file_stem().unwrap_or_default();
        self.name.clone().unwrap_or_else(|| label_of(&stem.to_string_lossy()))
    }

    /// Returns the folder for the files: each launcher has its own, so that one job can be tried by several.
    fn folder(&self, launcher: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| format!("launch-{}-{launcher}", self.name()).into())
    }

    /// Plans the run and returns the job to start.
    fn job(&self, workdir: String, quiet: bool) -> Result<Job> {
        self.check_ranks()?;
        let mut loaded = self.sets.load(&self.run, quiet)?;
        if let Some(words) = epochs::resolve_for_plan(&mut loaded.run)? {
            output::note(quiet, &words);
        }
        let planned = self.plan(&loaded)?;
        planned.refuse()?;
        let run = self.run.to_str().ok_or_else(|| {
            Error::usage("launch-word", format!("{}: its name is not UTF-8", self.run.display()))
                .hint("rename the run file")
        })?;
        let sets = self.sets.sets.iter().flat_map(|set| ["--set".to_string(), set.clone()]);
        let job = Job {
            name: self.name(),
            program: self.program.clone(),
            run: run.into(),
            args: sets.chain(self.train.iter().cloned()).collect(),
            workdir,
            env: self.env.iter().map(|text| EnvVar::parse(text)).collect::<Result<_>>()?,
            before: String::new(),
            hosts: self.hosts,
            ranks_per_host: self.ranks_per_host,
            restarts: self.restarts,
            port: self.port,
            host: self.needs(&loaded, &planned),
        };
        job.check().map(|()| job)
    }

    fn check_ranks(&self) -> Result<()> {
        let (hosts, each) = (self.hosts, self.ranks_per_host);
        let ranks = hosts * each;
        if ranks > RANKS_MAX {
            let message = format!(
                "{hosts} hosts with {each} ranks each are {ranks} ranks, and at most {RANKS_MAX} are built"
            );
            let fewer = (RANKS_MAX / hosts).max(1);
            return Err(Error::usage("launch-shape", message).hint(format!("--ranks-per-host {fewer}")));
        }
        match self.cards_per_host {
            Some(cards) if cards < each => {
                let message = format!(
                    "--ranks-per-host is {each}, and --cards-per-host is {cards}: a rank trains on a card of its own"
                );
                Err(Error::usage("launch-shape", message).hint(format!(
                    "--ranks-per-host {cards}, with more hosts if the run needs as many ranks"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the plan of each rank, for a host whose memory its own ranks share.
    fn plan(&self, loaded: &Loaded) -> Result<PlanReport> {
        let ranks = self.hosts * self.ranks_per_host;
        if loaded.run.trains() == TrainedKind::Policy {
            let message = "a policy in an environment trains on one rank alone";
            return Err(Error::usage("ranks-method", message).hint("start `plimsoll train RUN` on one host"));
        }
        if loaded.run.plays_agents() && ranks > 1 {
            let message = "agents that own their loop play with one rank alone";
            return Err(Error::usage("ranks-method", message).hint("--hosts 1 --ranks-per-host 1"));
        }
        let run = RunSpec::new(&loaded.run);
        let card = self.card.as_deref().map(Card::parse).transpose()?;
        let memory =
            self.host_memory.as_ref().map(|bytes| parse_limits(&format!("host={bytes}"))).transpose()?;
        let hosts = Hosts::even(self.hosts as usize, self.ranks_per_host as usize, None)?;
        plan_run(&run, &Machine { limits: memory, card, hosts })
    }

    fn needs(&self, loaded: &Loaded, planned: &PlanReport) -> HostNeeds {
        let each = u64::from(self.ranks_per_host);
        let peak = |pool: Pool| planned.plan.peak(pool).peak.0;
        let has_cards = peak(Pool::Device) > 0;
        let threads = planned.resolved.threads as u32;
        let cpus = self.cpus_per_rank.unwrap_or(match (has_cards, loaded.run.run.threads.value()) {
            (true, _) => CPUS_NEXT_TO_A_CARD,
            (false, Some(own)) => own,
            // Ranks share the processors of their host.
            (false, None) => (threads / self.ranks_per_host).max(1),
        });
        HostNeeds {
            memory: Bytes((peak(Pool::Host) + peak(Pool::Pinned)) * each),
            shm: Bytes(peak(Pool::Shm) * each + SHM_OF_LIBRARIES.0),
            open_files: open_files(loaded, each),
            cards: if has_cards { self.ranks_per_host } else { 0 },
            cpus: cpus * self.ranks_per_host,
        }
    }
}

/// A thread that drives the card, those that grade, and the exchange with other ranks.
const CPUS_NEXT_TO_A_CARD: u32 = 4;
/// Default size of a container's /dev/shm, which libraries rely on.
const SHM_OF_LIBRARIES: Bytes = Bytes::mib(64);
/// Descriptors of a rank without workers and without other ranks.
const FILES_OF_A_RANK: u64 = 256;
/// Longest file of --before and --patch.
const OWN_FILE_BYTES_MAX: u64 = 1 << 20;
const FILES_OF_A_WORKER: u64 = 4;
const FILES_OF_ANOTHER_RANK: u64 = 16;
/// Descriptors that most systems allow a process by default.
const FILES_MIN: u64 = 1024;

/// Returns the number of descriptors of the run's process that opens the most.
pub fn open_files(loaded: &Loaded, ranks: u64) -> u64 {
    let of_environment =
        loaded.run.environment.as_ref().map(|section| section.num_workers.value().unwrap_or(1));
    let workers = u64::from(of_environment.unwrap_or(0));
    let needed = FILES_OF_A_RANK + workers * FILES_OF_A_WORKER + ranks * FILES_OF_ANOTHER_RANK;
    needed.next_power_of_two().max(FILES_MIN)
}

fn needs_words(job: &Job) -> String {
    let HostNeeds { memory, shm, open_files, cards, cpus } = job.host;
    let cards = if cards == 0 { String::new() } else { format!(", {cards} cards") };
    let hosts = if job.hosts == 1 { "the host".into() } else { format!("each of {} hosts", job.hosts) };
    format!(
        "{hosts}: {} ranks{cards}, {cpus} processors, {} of memory ({memory} planned), {shm} in /dev/shm, {open_files} open files",
        job.ranks_per_host,
        job.memory_asked(Bytes(0)),
    )
}

/// Reads a file of lines or a patch.
fn read_own(path: &Path) -> Result<String> {
    let unreadable =
        |err| Error::io("io-error", path, &err).near(path).hint("give --before and --patch a file");
    read_small_text(path, OWN_FILE_BYTES_MAX).map_err(unreadable)
}

/// Errors: `launch-out-exists`, `write-failed`.
fn check_new(folder: &Path) -> Result<()> {
    if folder.symlink_metadata().is_ok() {
        return Err(exists(folder));
    }
    check_folder(folder).map_err(|err| failed(folder, &err))
}

fn exists(folder: &Path) -> Error {
    Error::usage("launch-out-exists", format!("{} is there already, and may hold edits", folder.display()))
        .hint("choose another --out or --name, or remove it")
}

fn failed(path: &Path, err: &std::io::Error) -> Error {
    Error::io("write-failed", path, err).hint("give --out a name in a folder that can be written")
}

fn write(folder: &Path, files: &[File]) -> Result<()> {
    if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(|err| failed(parent, &err))?;
    }
    fs::create_dir(folder).map_err(|err| match err.kind() {
        ErrorKind::AlreadyExists => exists(folder),
        _ => failed(folder, &err),
    })?;
    for File { name, text, kind } in files {
        let path = folder.join(name);
        let made = OpenOptions::new().write(true).create_new(true).mode(kind.mode()).open(&path);
        made.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|err| failed(&path, &err))?;
    }
    Ok(())
}

/// Returns 32 hexadecimal digits from the kernel's generator.
fn new_token() -> Result<String> {
    let mut bytes = [0; 16];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|err| Error::io("io-error", Path::new("/dev/urandom"), &err))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
