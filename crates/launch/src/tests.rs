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
        "ulimit -S -n 4096 || {",
        r"srun --kill-on-bad-exit=1 plimsoll train 'runs/my first.toml' --resume --set 'run.dir=it'\''s $(here)'",
        "restarts_max=3",
    ] {
        assert!(script.lines().any(|own| own == line), "{line}\n{script}");
    }
    let options = Slurm { partition: Some("gpu".into()), account: None, time: Some("4:00:00".into()) };
    let script = text(slurm::files(&Job { port: Some(29_500), ..job(1, 0) }, &options), "first.sbatch");
    assert!(script.contains("#SBATCH --partition=gpu\n#SBATCH --time=4:00:00\n"), "{script}");
    assert!(script.contains("\nMASTER_PORT=29500\n"), "{script}");
    for word in ["gpus", "MASTER_ADDR", "account"] {
        assert!(!script.contains(word), "{script}");
    }
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
    let slurm = text(slurm::files(&job(2, 4), &Slurm::default()), "first.sbatch");
    for script in [ray, start, slurm] {
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
