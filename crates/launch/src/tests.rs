//! The files of each launcher for one job on cards and one on processors, whole; and what is refused.

use super::*;
use k8s::{Controller, K8s};
use slurm::Slurm;
use ssh::Ssh;

fn job(hosts: u32, cards: u32) -> Job {
    Job {
        name: "first".into(),
        program: "plimsoll".into(),
        run: "runs/my first.toml".into(),
        args: vec!["--set".into(), "run.dir=it's $(here)".into()],
        workdir: "/shared/project".into(),
        env: Vec::new(),
        before: String::new(),
        hosts,
        ranks_per_host: 4,
        restarts: 3,
        port: None,
        host: HostNeeds {
            memory: Bytes::mib(20_000),
            shm: Bytes::mib(64),
            open_files: 4096,
            cards,
            cpus: 32,
        },
    }
}

fn k8s(controller: Controller) -> K8s {
    K8s {
        controller,
        image: "registry.example/plimsoll:0.1".into(),
        namespace: Some("training".into()),
        claim: Some("project".into()),
        token: "0123".into(),
        patch: None,
    }
}

/// A job with what an administrator adds.
fn surrounded(hosts: u32, cards: u32) -> Job {
    let var = |text: &str| EnvVar::parse(text).expect("a variable");
    Job {
        env: vec![var("NCCL_IB_HCA=mlx5"), var("NOTE=it's $(here)")],
        before: "module load cuda\n. venv/bin/activate || exit 2\n".into(),
        ..job(hosts, cards)
    }
}

fn text(files: Result<Vec<File>>, name: &str) -> String {
    let files = files.expect("files");
    files.into_iter().find(|file| file.name == name).expect("a file of this name").text
}

#[test]
fn memory_is_the_plan_with_a_margin_in_whole_steps() {
    // 20,000 and 2 % of it, 64 and 256: 20,720 MiB.
    assert_eq!(job(2, 4).memory_asked(Bytes(0)), Bytes::mib(20_736));
    assert_eq!(job(2, 4).memory_asked(Bytes::mib(17)), Bytes::mib(20_992));
}

#[test]
fn a_slurm_script_asks_for_what_the_plan_says() {
    let script = text(slurm::files(&job(2, 4), &Slurm::default()), "first.sbatch");
    for line in [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=20736M",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --requeue",
        r#"[ "$(ulimit -S -n)" = unlimited ] || [ "$(ulimit -S -n)" -ge 4096 ] || ulimit -S -n 4096 || {"#,
        r"srun --kill-on-bad-exit=1 --cpus-per-task=8 --gpus-per-node=4 plimsoll train 'runs/my first.toml' --resume --set 'run.dir=it'\''s $(here)'",
        "restarts_max=3",
    ] {
        assert!(script.lines().any(|own| own == line), "{line}\n{script}");
    }
    let options = Slurm { partition: Some("gpu".into()), time: Some("4:00:00".into()), ..Slurm::default() };
    let script = text(slurm::files(&Job { port: Some(29_500), ..job(1, 0) }, &options), "first.sbatch");
    assert!(script.contains("#SBATCH --partition=gpu\n#SBATCH --time=4:00:00\n"), "{script}");
    assert!(script.contains("\nMASTER_PORT=29500\n"), "{script}");
    for word in ["gpu-bind", "gpus", "MASTER_ADDR", "account"] {
        assert!(!script.contains(word), "{script}");
    }
}

/// Which cards, which queue and which image there are is the cluster's to say, in its own words.
#[test]
fn options_of_slurm_take_the_place_of_those_of_the_script() {
    let options = |sbatch: &[&str], srun: &[&str]| Slurm {
        sbatch: sbatch.iter().map(|option| option.to_string()).collect(),
        srun: srun.iter().map(|option| option.to_string()).collect(),
        ..Slurm::default()
    };
    let given = options(
        &["qos=high", "gres=gpu:h100:4", "constraint=ib&h100", "output=%x.log"],
        &["container-image=registry.example#plimsoll:0.1", "kill-on-bad-exit=0"],
    );
    let script = text(slurm::files(&surrounded(2, 4), &given), "first.sbatch");
    for line in [
        "#SBATCH --qos=high",
        "#SBATCH --gres=gpu:h100:4",
        "#SBATCH --constraint='ib&h100'",
        "#SBATCH --output=%x.log",
        "module load cuda",
        "export NCCL_IB_HCA=mlx5",
        r"export NOTE='it'\''s $(here)'",
    ] {
        assert!(script.lines().any(|own| own == line), "{line}\n{script}");
    }
    assert!(
        script.contains(
            "srun --cpus-per-task=8 --gres=gpu:h100:4 \
         '--container-image=registry.example#plimsoll:0.1' --kill-on-bad-exit=0 plimsoll"
        ),
        "{script}"
    );
    assert!(!script.contains("gpus-per-node") && !script.contains("first-%j"), "{script}");
    // The lines come first: what they set is used.
    let at = |part: &str| script.find(part).unwrap_or_else(|| panic!("{part}\n{script}"));
    assert!(at("unset MASTER_ADDR") < at("module load") && at("module load") < at("MASTER_ADDR:="));
    for bad in ["nodes=3", "--qos=high", "mem=1G", "gpus-per-task=1"] {
        let refused = slurm::files(&job(2, 4), &options(&[bad], &[])).expect_err(bad);
        assert_eq!(refused.slug, "launch-word");
    }
}

#[test]
fn a_pod_has_its_variables_and_lines_and_what_is_patched_in() {
    let patch = "\
metadata:
  labels: {kueue.x-k8s.io/queue-name: gpus}
---
kind: PodTemplate
template:
  spec:
    imagePullSecrets: [{name: registry}]
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
";
    for (controller, pods) in [(Controller::JobSet, 1), (Controller::PyTorchJob, 2)] {
        let k8s = K8s { patch: Some(patch.into()), ..k8s(controller) };
        let manifest = text(k8s::files(&surrounded(2, 4), &k8s), "job.yaml");
        for (part, times) in [
            ("kueue.x-k8s.io/queue-name: gpus", 1),
            ("fsGroup: 65532", pods),
            ("imagePullSecrets:", pods),
            ("- key: nvidia.com/gpu", pods),
            ("value: mlx5", pods),
            ("value: \"it's $$(here)\"", pods),
            ("value: /shared/project/.cache/huggingface", pods),
            ("  module load cuda\n", pods),
            ("exec \"$@\"\n", pods),
        ] {
            assert_eq!(manifest.matches(part).count(), times, "{part}\n{manifest}");
        }
    }
    let own = Job { env: vec![EnvVar::parse("HF_HOME=/models").expect("a variable")], ..job(1, 0) };
    let manifest = text(k8s::files(&own, &k8s(Controller::JobSet)), "job.yaml");
    assert_eq!(manifest.matches("HF_HOME").count(), 1, "{manifest}");
    let alone = K8s { claim: None, ..k8s(Controller::JobSet) };
    let manifest = text(k8s::files(&job(1, 0), &alone), "job.yaml");
    assert!(!manifest.contains("HF_HOME") && !manifest.contains("fsGroup"), "{manifest}");
    let typo = K8s { patch: Some("kind: Pod\n".into()), ..alone };
    assert_eq!(k8s::files(&job(1, 0), &typo).expect_err("it is refused").slug, "launch-patch");
}

#[test]
fn a_pod_is_a_host() {
    for (controller, rank, first) in [
        (Controller::JobSet, "\"$(HOST_RANK)\"", "first-host-0-0.first:23456"),
        (Controller::PyTorchJob, "\"$(RANK)\"", "first-master-0:23456"),
    ] {
        let manifest = text(k8s::files(&job(2, 4), &k8s(controller)), "job.yaml");
        for part in [
            "- --ranks\n",
            "- \"8\"\n",
            "- --hosts\n",
            "- --host-rank\n",
            rank,
            first,
            "memory: \"20736Mi\"",
            "nvidia.com/gpu: \"4\"",
            "sizeLimit: \"64Mi\"",
            "\"run.dir=it's $$(here)\"",
            "\"runs/my first.toml\"",
            "claimName: project",
            "namespace: training",
        ] {
            let part = part.trim_end();
            assert!(manifest.contains(part), "{part}\n{manifest}");
        }
        assert!(!manifest.contains("0123"), "the secret is in a file of its own:\n{manifest}");
        let alone = text(k8s::files(&job(1, 0), &k8s(controller)), "job.yaml");
        for word in ["--join", "gpu", "Worker", "--host-rank"] {
            assert!(!alone.contains(word), "{alone}");
        }
    }
    let files = k8s::files(&job(2, 4), &k8s(Controller::JobSet)).expect("files");
    let modes: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.kind.mode())).collect();
    assert_eq!(modes, [("secret.yaml", 0o600), ("job.yaml", 0o644)]);
}

#[test]
fn the_scripts_are_shell() {
    let ray = text(ray::files(&job(2, 4), &ray::Ray::default()), "submit.sh");
    let words =
        "plimsoll-ray 'runs/my first.toml' --hosts 2 --ranks-per-host 4 --cpus-per-rank 8 --gpus-per-rank 1";
    assert!(ray.contains(words), "{ray}");
    // 20,720 MiB, and 256 a rank.
    assert!(ray.contains(&format!("--memory-per-host {}", Bytes::mib(21_760).0)), "{ray}");
    let ssh = Ssh { hosts: vec!["a".into(), "me@b".into()] };
    let start = text(ssh::files(&job(2, 4), &ssh), "start.sh");
    assert!(!start.contains('@'.to_string().as_str()) || !start.contains("@REMOTE@"), "{start}");
    assert!(text(ssh::files(&job(2, 4), &ssh), "hosts").ends_with("\na\nme@b\n"));
    assert!(text(ssh::files(&job(2, 4), &Ssh::default()), "hosts").ends_with("\nHOST-0\nHOST-1\n"));
    let with = text(ray::files(&surrounded(2, 4), &ray::Ray::default()), "submit.sh");
    assert!(with.contains(r#"'--runtime-env-json={"env_vars":{"NCCL_IB_HCA":"mlx5","NOTE":"it'"#), "{with}");
    let around = text(ssh::files(&surrounded(2, 4), &ssh), "start.sh");
    assert!(
        around.contains("module load cuda\n. venv/bin/activate || exit 2\nexport NCCL_IB_HCA=mlx5\n"),
        "{around}"
    );
    let slurm = text(slurm::files(&surrounded(2, 4), &Slurm::default()), "first.sbatch");
    for script in [ray, with, start, around, slurm] {
        let output = std::process::Command::new("sh").args(["-n", "-c", &script]).output().expect("a shell");
        assert!(output.status.success(), "{}\n{script}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn what_no_launcher_passes_on_is_refused() {
    let refused = |job: Job, ssh: &[&str]| {
        let ssh = Ssh { hosts: ssh.iter().map(|host| host.to_string()).collect() };
        ssh::files(&job, &ssh).expect_err("it is refused").slug
    };
    assert_eq!(refused(Job { run: "a\nb".into(), ..job(2, 0) }, &[]), "launch-word");
    assert_eq!(refused(Job { run: String::new(), ..job(2, 0) }, &[]), "launch-word");
    assert_eq!(refused(Job { name: "First".into(), ..job(2, 0) }, &[]), "launch-word");
    assert_eq!(refused(job(2, 0), &["a"]), "launch-shape");
    assert_eq!(refused(job(2, 0), &["a", "-oProxyCommand=x"]), "launch-word");
    assert_eq!(refused(job(2, 0), &["a", "b c"]), "launch-word");
}

/// Shows what a stranger lacks: each file makes a secret for each start, and every host gets it, in no command's words.
#[test]
fn files_make_a_secret_and_carry_it_to_every_host() {
    let made = || {
        let script = format!("{}; printf %s \"$PLIMSOLL_TOKEN\"", sh::TOKEN);
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let (one, other) = (made(), made());
    assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()) && one != other, "{one}");
    let script = text(slurm::files(&job(2, 4), &Slurm::default()), "first.sbatch");
    let at = |part: &str| script.find(part).unwrap_or_else(|| panic!("{part}\n{script}"));
    assert!(
        at(sh::TOKEN) < at("export MASTER_PORT PLIMSOLL_TOKEN") && at("export MASTER_PORT") < at("\nsrun ")
    );
    let ssh = Ssh { hosts: vec!["a".into(), "b".into()] };
    let start = text(ssh::files(&job(2, 4), &ssh), "start.sh");
    let carried = r#"printf '%s\n' "$PLIMSOLL_TOKEN"; exec cat) <"$work/hold" >"$work/in.$number" &"#;
    for part in [sh::TOKEN, carried, "IFS= read -r PLIMSOLL_TOKEN || exit 2\nexport PLIMSOLL_TOKEN\n"] {
        assert_eq!(start.matches(part).count(), 1, "{part}\n{start}");
    }
    assert_eq!(start.matches("$PLIMSOLL_TOKEN").count(), 1, "in no words of ssh:\n{start}");
    for (controller, pods) in [(Controller::JobSet, 1), (Controller::PyTorchJob, 2)] {
        let manifest = text(k8s::files(&job(2, 4), &k8s(controller)), "job.yaml");
        for part in ["name: PLIMSOLL_TOKEN\n", "secretKeyRef:\n", "name: first-token\n"] {
            assert_eq!(manifest.matches(part).count(), pods, "{part}\n{manifest}");
        }
        let secret = text(k8s::files(&job(2, 4), &k8s(controller)), "secret.yaml");
        assert!(secret.contains("name: first-token\n") && secret.contains("0123"), "{secret}");
    }
}
