//! Slurm: a batch script, one task per rank. A failed job requeues itself and resumes from its last checkpoint.

use crate::env::check_option;
use crate::{File, Job, Kind, command, sh};
use plimsoll_base::{Bytes, Result};

/// Settings for Slurm only.
#[derive(Clone, Debug, Default)]
pub struct Slurm {
    pub partition: Option<String>,
    pub account: Option<String>,
    /// In sbatch's form: `4:00:00`.
    pub time: Option<String>,
    /// Further options of sbatch, without their dashes: `qos=high`.
    pub sbatch: Vec<String>,
    /// Further options of srun.
    pub srun: Vec<String>,
}

/// Seconds before the job's end at which a step is asked to end: enough for a step and a checkpoint.
const WARNING_S: u32 = 300;
/// Ports derived from the job id, so that two jobs on a host seldom try the same one.
const PORTS: &str = "20000 + SLURM_JOB_ID % 10000";

/// Finds where Slurm itself reaches the first node, because its name may be unknown to others.
const FIRST_NODE: &str = r#"first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
: "${MASTER_ADDR:=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')}"
export MASTER_ADDR
"#;
/// Options of sbatch that follow from the plan and from flags of `launch`, and what sets them.
const DECIDED: [(&str, &str); 10] = [
    ("job-name", "--name NAME"),
    ("chdir", "--workdir PATH"),
    ("nodes", "--hosts H"),
    ("ntasks", "--hosts H and --ranks-per-host R"),
    ("ntasks-per-node", "--ranks-per-host R"),
    ("cpus-per-task", "--cpus-per-rank N"),
    ("mem", "the plan is what is asked for; --host-memory says what a host has"),
    ("mem-per-cpu", "the plan is what is asked for; --host-memory says what a host has"),
    ("gpus-per-task", "cards are asked for by host: --sbatch gpus-per-node=TYPE:N"),
    ("gpu-bind", "ranks of a host see all of its cards"),
];

/// Returns the script.
///
/// Errors: `launch-word`.
pub fn files(job: &Job, slurm: &Slurm) -> Result<Vec<File>> {
    job.check()?;
    for (flag, options) in [("--sbatch", &slurm.sbatch), ("--srun", &slurm.srun)] {
        options.iter().try_for_each(|option| check_option(flag, option, &DECIDED))?;
    }
    let name = format!("{}.sbatch", job.name);
    let text =
        format!("#!/bin/sh\n# {}\n{}\n{}", job.headline("slurm"), directives(job, slurm), body(job, slurm));
    Ok(vec![File { name, text, kind: Kind::Script }])
}

fn directives(job: &Job, slurm: &Slurm) -> String {
    let memory = job.memory_asked(Bytes(0)).0 >> 20;
    let mut lines = vec![
        format!("job-name={}", job.name),
        format!("chdir={}", job.workdir),
        format!("nodes={}", job.hosts),
        format!("ntasks-per-node={}", job.ranks_per_host),
        format!("cpus-per-task={}", job.host.cpus.div_ceil(job.ranks_per_host)),
        format!("mem={memory}M"),
    ];
    lines.extend(cards_of_host(job, slurm));
    let own = [("partition", &slurm.partition), ("account", &slurm.account), ("time", &slurm.time)];
    lines.extend(own.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?))));
    lines.extend(["requeue", "open-mode=append"].map(String::from));
    lines.push(format!("output={}-%j.log", job.name));
    // Sent to the ranks, which save after their step and end.
    lines.push(format!("signal=TERM@{WARNING_S}"));
    // What is given takes the place of the script's own choice.
    lines.retain(|own| !slurm.sbatch.iter().any(|given| key(given) == key(own)));
    lines.extend(slurm.sbatch.iter().cloned());
    lines.iter().map(|line| format!("#SBATCH --{}\n", directive(line))).collect()
}

fn key(option: &str) -> &str {
    option.split_once('=').map_or(option, |(key, _)| key)
}

/// Returns the option that asks for a host's cards. Not task by task: a host's ranks open each other's memory.
fn cards_of_host(job: &Job, slurm: &Slurm) -> Option<String> {
    let is_given = |option: &&String| key(option).starts_with("gpus") || option.starts_with("gres=gpu");
    match slurm.sbatch.iter().find(is_given) {
        Some(given) if job.host.cards > 0 => Some(given.clone()),
        Some(_) => None,
        None => (job.host.cards > 0).then(|| format!("gpus-per-node={}", job.host.cards)),
    }
}

/// Returns the options of srun. From Slurm 22.05 on a step does not inherit `--cpus-per-task`, and one that names it
/// gets no more than it names itself: so it names the host's cards too. With `--gpu-bind=none` a task would see those
/// of other jobs.
fn step_options(job: &Job, slurm: &Slurm) -> Vec<String> {
    let mut options = vec![
        "kill-on-bad-exit=1".to_string(),
        format!("cpus-per-task={}", job.host.cpus.div_ceil(job.ranks_per_host)),
    ];
    options.extend(cards_of_host(job, slurm));
    options.retain(|own| !slurm.srun.iter().any(|given| key(given) == key(own)));
    options.extend(slurm.srun.iter().cloned());
    options.iter().map(|option| format!("--{option}")).collect()
}

/// Quotes a line. sbatch reads its words as a shell would, without variables.
fn directive(line: &str) -> String {
    match line.split_once('=') {
        Some((key, value)) => format!("{key}={}", sh::quoted(value)),
        None => line.to_string(),
    }
}

fn body(job: &Job, slurm: &Slurm) -> String {
    let restarts = job.restarts;
    let port = job.port.map_or_else(|| format!("$(({PORTS}))"), |port| port.to_string());
    let mut text = sh::open_files(job.host.open_files);
    if job.hosts > 1 {
        // One that the job was submitted with is of somewhere else; what follows may set it.
        text += "unset MASTER_ADDR\n";
    }
    text += &job.lines_before();
    text += &job.exports();
    if job.hosts > 1 {
        text += FIRST_NODE;
    }
    text += &format!("MASTER_PORT={port}\n{}\nexport MASTER_PORT PLIMSOLL_TOKEN\n\n", sh::TOKEN);
    let step = [step_options(job, slurm), command::of_rank(job)].concat();
    text += &format!("srun {}\ncode=$?\n\n", sh::line(&step));
    text += "\
# 2 and 3: the run file, or memory; another start would end in the same way. A job that was cancelled does not come here.
case $code in
    0|2|3) exit $code ;;
esac
";
    text += &format!("restarts_max={restarts}\ndone=${{SLURM_RESTART_COUNT:-0}}\n");
    text += r#"if [ "$done" -ge "$restarts_max" ]; then
    echo "the run ended with exit code $code after $done of $restarts_max restarts" >&2
    exit $code
fi
echo "the run ended with exit code $code: restart $((done + 1)) of $restarts_max" >&2
scontrol requeue "$SLURM_JOB_ID" || exit $code
"#;
    text
}
