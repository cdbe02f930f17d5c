//! Ray: a script that submits `plimsoll-ray`, which places the ranks and starts them.

use crate::{EnvVar, File, Job, Kind, sh};
use plimsoll_base::{Bytes, Result};
use serde_json::{Map, Value, json};

/// Settings for Ray only; it has no lines before the command, which no shell starts.
#[derive(Clone, Debug, Default)]
pub struct Ray {
    /// Address of the job server; without it, `RAY_ADDRESS` applies.
    pub address: Option<String>,
}

/// Memory of a rank's Ray process in Python, which starts the rank and forwards its output.
const WORKER_HOLDS: Bytes = Bytes::mib(256);

/// Returns the script.
///
/// Errors: `launch-word`.
pub fn files(job: &Job, ray: &Ray) -> Result<Vec<File>> {
    job.check()?;
    let words = entry_point(job);
    let mut submit = vec!["ray".to_string(), "job".into(), "submit".into()];
    submit.extend(ray.address.iter().map(|address| format!("--address={address}")));
    if !job.env.is_empty() {
        let vars: Map<String, Value> =
            job.env.iter().map(|EnvVar { name, value }| (name.clone(), value.as_str().into())).collect();
        submit.push(format!("--runtime-env-json={}", json!({ "env_vars": vars })));
    }
    submit.push("--".into());
    let text = format!(
        "#!/bin/sh\n# {}\n# The nodes have plimsoll and plimsoll-ray, and {} at the same place.\nexec {} \\\n    {}\n",
        job.headline("ray"),
        sh::quoted(&job.workdir),
        sh::line(&submit),
        sh::line(&words),
    );
    Ok(vec![File { name: "submit.sh".into(), text, kind: Kind::Script }])
}

fn entry_point(job: &Job) -> Vec<String> {
    let memory = job.memory_asked(Bytes(WORKER_HOLDS.0 * u64::from(job.ranks_per_host)));
    let gpus = job.host.cards.div_ceil(job.ranks_per_host);
    let flags = [
        ("--hosts", job.hosts.to_string()),
        ("--ranks-per-host", job.ranks_per_host.to_string()),
        ("--cpus-per-rank", job.host.cpus.div_ceil(job.ranks_per_host).to_string()),
        ("--gpus-per-rank", gpus.to_string()),
        ("--memory-per-host", memory.0.to_string()),
        ("--open-files", job.host.open_files.to_string()),
        ("--restarts", job.restarts.to_string()),
        ("--workdir", job.workdir.clone()),
        ("--program", job.program.clone()),
    ];
    let mut words = vec!["plimsoll-ray".to_string(), job.run.clone()];
    words.extend(flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]));
    if let Some(port) = job.port {
        words.extend(["--port".into(), port.to_string()]);
    }
    if !job.args.is_empty() {
        words.push("--".into());
        words.extend(job.args.iter().cloned());
    }
    words
}
