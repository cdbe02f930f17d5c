//! Kubernetes: a JobSet or a PyTorchJob with one pod per host, and a Secret. A pod starts its host's ranks itself, so
//! one container needs all of that host's cards, and no other namespace is shared.
//!
//! Sources: kubernetes-sigs/jobset `config/components/crd/bases`, kubeflow/training-operator `manifests/base/crds` and
//! `pkg/controller.v1/pytorch/envvar.go`.

use crate::{EnvVar, File, Job, Kind, command, patch, sh, yaml};
use plimsoll_base::{Bytes, Error, Result};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    #[default]
    JobSet,
    PyTorchJob,
}

impl Controller {
    /// Returns the name of the resource, as in `kubectl get crd`.
    pub fn crd(self) -> &'static str {
        match self {
            Controller::JobSet => "jobsets.jobset.x-k8s.io",
            Controller::PyTorchJob => "pytorchjobs.kubeflow.org",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Controller::JobSet => "JobSet",
            Controller::PyTorchJob => "PyTorchJob",
        }
    }
}

/// Settings for Kubernetes only.
#[derive(Clone, Debug)]
pub struct K8s {
    pub controller: Controller,
    pub image: String,
    pub namespace: Option<String>,
    /// Claim on a volume that all hosts mount at `workdir`, with the run file and the run's directory.
    pub claim: Option<String>,
    /// Shared by the pods of this job, 32 hexadecimal digits.
    pub token: String,
    /// A merge patch in YAML for the job and its pods.
    pub patch: Option<String>,
}

/// Default port of host 0: that of a PyTorchJob's service.
const PORT: u16 = 23_456;
/// The replicated job of a JobSet; part of the pods' names.
const HOSTS: &str = "host";
/// Time after SIGTERM for the ranks to finish a step and save.
const GRACE_S: u32 = 300;
/// Where models of the hub are kept, below `workdir`.
const HUB_HOME: &str = ".cache/huggingface";
/// The user and group of the image of `Containerfile`.
const IMAGE_USER: u32 = 65_532;
/// The Secret's only key.
const TOKEN_KEY: &str = "token";

/// Returns the Secret and the job.
///
/// Errors: `launch-word`.
pub fn files(job: &Job, k8s: &K8s) -> Result<Vec<File>> {
    job.check()?;
    for (flag, value) in [("--image", Some(&k8s.image)), ("--namespace", k8s.namespace.as_ref())] {
        if value.is_some_and(|value| value.is_empty() || value.contains(char::is_whitespace)) {
            let message = format!("{flag} is {:?}", value.map_or("", String::as_str));
            return Err(
                Error::usage("launch-word", message).hint(format!("give {flag} a name without spaces"))
            );
        }
    }
    let mut object = match k8s.controller {
        Controller::JobSet => job_set(job, k8s),
        Controller::PyTorchJob => pytorch_job(job, k8s),
    };
    if let Some(patch) = &k8s.patch {
        patch::apply(patch, k8s.controller.name(), &mut object, &templates(job, k8s.controller))?;
    }
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(secret_name(job), k8s),
        "type": "Opaque",
        "stringData": { TOKEN_KEY: k8s.token },
    });
    let headline = job.headline("k8s");
    let text = |value: &Value| format!("# {headline}\n{}", yaml::text(value));
    Ok(vec![
        File { name: "secret.yaml".into(), text: text(&secret), kind: Kind::Secret },
        File { name: "job.yaml".into(), text: text(&object), kind: Kind::Data },
    ])
}

/// Returns the paths of the templates of pods.
fn templates(job: &Job, controller: Controller) -> Vec<String> {
    match controller {
        Controller::JobSet => vec!["/spec/replicatedJobs/0/template/spec/template".into()],
        Controller::PyTorchJob => {
            let of = |replica: &str| format!("/spec/pytorchReplicaSpecs/{replica}/template");
            let replicas: &[&str] = if job.hosts > 1 { &["Master", "Worker"] } else { &["Master"] };
            replicas.iter().map(|replica| of(replica)).collect()
        }
    }
}

fn secret_name(job: &Job) -> String {
    format!("{}-token", job.name)
}

fn metadata(name: String, k8s: &K8s) -> Value {
    let mut metadata = json!({ "name": name });
    if let Some(namespace) = &k8s.namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

fn job_set(job: &Job, k8s: &K8s) -> Value {
    let name = &job.name;
    // The pod of completion index 0, in the set's headless service.
    let first = format!("{name}-{HOSTS}-0-0.{name}");
    let index = json!({ "fieldRef": { "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']" } });
    let number = json!({ "name": "HOST_RANK", "valueFrom": index });
    let pod = pod(job, k8s, "$(HOST_RANK)", &first, Some(number));
    // A bad run file or lack of memory: a restart would end the same way.
    let final_codes = json!({ "containerName": "train", "operator": "In", "values": [2, 3] });
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(name.clone(), k8s),
        "spec": {
            "failurePolicy": {
                "maxRestarts": job.restarts,
                "rules": [{ "name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"] }],
            },
            "network": { "enableDNSHostnames": true, "publishNotReadyAddresses": true },
            "replicatedJobs": [{
                "name": HOSTS,
                "replicas": 1,
                "template": {
                    "spec": {
                        "parallelism": job.hosts,
                        "completions": job.hosts,
                        "completionMode": "Indexed",
                        // One failing host ends all: the set restarts them together.
                        "backoffLimit": 0,
                        "podFailurePolicy": { "rules": [{ "action": "FailJob", "onExitCodes": final_codes }] },
                        "template": { "spec": with_policy(pod, "Never") },
                    },
                },
            }],
        },
    })
}

fn pytorch_job(job: &Job, k8s: &K8s) -> Value {
    // The controller makes a service for each pod, and sets RANK to the pod's number.
    let first = format!("{}-master-0", job.name);
    let replicas = |number: u32| {
        json!({
            "replicas": number,
            "restartPolicy": "OnFailure",
            "template": { "spec": pod(job, k8s, "$(RANK)", &first, None) },
        })
    };
    let mut specs = json!({ "Master": replicas(1) });
    if job.hosts > 1 {
        specs["Worker"] = replicas(job.hosts - 1);
    }
    json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(job.name.clone(), k8s),
        "spec": {
            // It counts restarts of all pods, which restart together.
            "runPolicy": { "backoffLimit": job.restarts * job.hosts, "cleanPodPolicy": "Running" },
            "pytorchReplicaSpecs": specs,
        },
    })
}

fn with_policy(mut pod: Value, policy: &str) -> Value {
    pod["restartPolicy"] = json!(policy);
    pod
}

fn pod(job: &Job, k8s: &K8s, host_rank: &str, first: &str, number: Option<Value>) -> Value {
    let port = job.port.unwrap_or(PORT);
    let (container, port_name) = match k8s.controller {
        Controller::JobSet => ("train", "ranks"),
        // The controller finds them by these names.
        Controller::PyTorchJob => ("pytorch", "pytorchjob-port"),
    };
    let mebibytes = |bytes: Bytes| format!("{}Mi", bytes.0.div_ceil(1 << 20));
    let mut resources =
        json!({ "cpu": job.host.cpus.to_string(), "memory": mebibytes(job.memory_asked(Bytes(0))) });
    if job.host.cards > 0 {
        resources["nvidia.com/gpu"] = json!(job.host.cards.to_string());
    }
    let token = json!({ "secretKeyRef": { "name": secret_name(job), "key": TOKEN_KEY } });
    let mut env = vec![json!({ "name": "PLIMSOLL_TOKEN", "valueFrom": token })];
    env.extend(number);
    if k8s.claim.is_some() && !job.env.iter().any(|var| var.name == "HF_HOME") {
        // On the volume, so that neither each pod nor each restart fetches models of the hub again.
        let home = format!("{}/{HUB_HOME}", job.workdir.trim_end_matches('/'));
        env.push(json!({ "name": "HF_HOME", "value": home }));
    }
    // Kubernetes expands `$(NAME)` in values too.
    let of_job = |EnvVar { name, value }: &EnvVar| json!({ "name": name, "value": literal(value) });
    env.extend(job.env.iter().map(of_job));
    let mut volumes = vec![
        json!({ "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": mebibytes(job.host.shm) } }),
    ];
    let mut mounts = vec![json!({ "name": "shm", "mountPath": "/dev/shm" })];
    if let Some(claim) = &k8s.claim {
        volumes.push(json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } }));
        mounts.push(json!({ "name": "data", "mountPath": job.workdir }));
    }
    // Kubernetes sets no limit on open files.
    let raise = sh::raise_open_files(job.host.open_files);
    let script = format!("{raise} || exit 2\n{}exec \"$@\"", job.lines_before());
    let mut pod = json!({
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [{
            "name": container,
            "image": k8s.image,
            "workingDir": job.workdir,
            "command": ["/bin/sh", "-c", literal(&script), "sh"],
            "args": arguments(job, host_rank, &format!("{first}:{port}")),
            "env": env,
            "ports": [{ "name": port_name, "containerPort": port }],
            "resources": { "requests": resources, "limits": resources },
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    });
    if k8s.claim.is_some() {
        // The image's user may write to what is mounted; files that are there already are not touched one by one.
        pod["securityContext"] = json!({ "fsGroup": IMAGE_USER, "fsGroupChangePolicy": "OnRootMismatch" });
    }
    pod
}

/// Returns the command of a host.
fn arguments(job: &Job, host_rank: &str, join: &str) -> Vec<String> {
    const PLACE: &str = "\0";
    let words = command::of_host(job, PLACE, join);
    let one = |word: String| if word == PLACE { host_rank.to_string() } else { literal(&word) };
    words.into_iter().map(one).collect()
}

/// Returns text as Kubernetes passes it on unchanged: it expands `$(NAME)`, and reads `$$` as a dollar sign.
fn literal(text: &str) -> String {
    let (mut literal, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('$') {
        let dollars = rest[at..].bytes().take_while(|&byte| byte == b'$').count();
        let after = &rest[at + dollars..];
        // One alone that opens no bracket stays as it is.
        let times = if dollars > 1 || after.starts_with('(') { 2 } else { 1 };
        literal += &rest[..at];
        literal += &"$".repeat(dollars * times);
        rest = after;
    }
    literal + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expands as kubernetes `third_party/forked/golang/expansion/expand.go` does, with no variable known.
    fn expanded(text: &str) -> String {
        let (mut whole, mut chars) = (String::new(), text.chars().peekable());
        while let Some(c) = chars.next() {
            whole.push(c);
            if c == '$' && chars.peek() == Some(&'$') {
                chars.next();
            } else if c == '$' && chars.peek() == Some(&'(') {
                whole.push_str("<expanded>");
            }
        }
        whole
    }

    #[test]
    fn kubernetes_passes_words_on_as_they_are() {
        for text in ["$(here)", "$$(here)", "$$$(here)", "$$", "$$$", "\"$@\"", "a$b$$c", "$", "ä$(ö)"] {
            assert_eq!(expanded(&literal(text)), text);
        }
        assert_eq!(literal("exec \"$@\""), "exec \"$@\"");
    }
}
