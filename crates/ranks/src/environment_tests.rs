//! Environments as launchers set them, and as they are when something is wrong.

use super::*;

const PARENT: u32 = 4711;

/// What a case expects: one, `start N`, `RANK/RANKS launcher address:port`, or a slug with a part of its message.
fn check(environment: &str, flag: Option<u32>, expect: &str) {
    let variables: Vec<(&str, &str)> =
        environment.split_whitespace().map(|pair| pair.split_once('=').expect("NAME=VALUE")).collect();
    let get = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_string());
    let found = match read(&get, &Flags { ranks: flag, parent: PARENT }) {
        Ok(Found::One) => "one".to_string(),
        Ok(Found::Start(ranks)) => format!("start {ranks}"),
        Ok(Found::Rank(launch)) => {
            let Launch { rank, ranks, local_rank, local_ranks, address, port, launcher, .. } = &launch;
            assert_eq!((rank, ranks), (local_rank, local_ranks), "{environment}");
            format!("{rank}/{ranks} {} {address}:{port}", launcher.name())
        }
        Err(error) => {
            assert_eq!((error.exit, error.hints.is_empty()), (plimsoll_base::Exit::Usage, false), "{error}");
            format!("{}: {}", error.slug, error.message)
        }
    };
    let is_expected = match expect.split_once(": ") {
        Some((slug, part)) => found.starts_with(slug) && found.contains(part),
        None if expect.ends_with('*') => found.starts_with(expect.trim_end_matches('*')),
        None => found == expect,
    };
    assert!(is_expected, "{environment} with --ranks {flag:?}\nexpected {expect}\nfound    {found}");
}

const TORCHRUN: &str = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True";
const SRUN: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=4 SLURM_STEP_NODELIST=n1 SLURM_NODEID=0";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=prterun-a-7@1";
const MPICH: &str = "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2";

/// `environment` without the variable `name`, or with another value.
fn but(environment: &str, name: &str, value: Option<&str>) -> String {
    let is_it = |pair: &&str| pair.split_once('=').is_some_and(|(key, _)| key == name);
    let kept: Vec<&str> = environment.split(' ').filter(|pair| !is_it(pair)).collect();
    assert!(kept.len() < environment.split(' ').count(), "{name} is not in {environment}");
    value.iter().fold(kept.join(" "), |all, value| format!("{all} {name}={value}"))
}

#[test]
fn launchers_are_known_by_their_variables() {
    for (environment, expect) in [
        ("", "one"),
        (TORCHRUN, "1/4 torchrun 127.0.0.1:29500"),
        (&but(TORCHRUN, "MASTER_ADDR", Some("node-a")), "1/4 torchrun node-a:29500"),
        ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", "one"),
        (SRUN, "2/4 srun 127.0.0.1:*"),
        (&but(SRUN, "SLURM_STEP_TASKS_PER_NODE", None), "2/4 srun *"),
        (&format!("{SRUN} MASTER_PORT=5000"), "2/4 srun 127.0.0.1:5000"),
        // A batch script is no step.
        ("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", "one"),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0", "one"),
        (OPEN_MPI, "3/4 Open MPI 127.0.0.1:*"),
        (&but(OPEN_MPI, "PMIX_NAMESPACE", None), "3/4 Open MPI *"),
        (MPICH, "0/2 MPICH 127.0.0.1:*"),
        ("PLIMSOLL_LAUNCH=2/3:4000:4711", "2/3 plimsoll 127.0.0.1:4000"),
        // An address alone is exported by many images.
        ("MASTER_ADDR=node-a MASTER_PORT=29500", "one"),
        ("JOB_COMPLETION_INDEX=3", "one"),
        ("PET_NNODES=1 PET_NODE_RANK=0", "one"),
        ("PET_NNODES=1:1", "one"),
        ("SKYPILOT_NUM_NODES=1", "one"),
        ("RANK=0 WORLD_SIZE=1", "one"),
    ] {
        check(environment, None, expect);
    }
}

#[test]
fn a_flag_starts_ranks_unless_a_launcher_did() {
    for (environment, flag, expect) in [
        ("", 4, "start 4"),
        ("", 1, "one"),
        ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", 4, "start 4"),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0", 2, "start 2"),
        (TORCHRUN, 4, "1/4 torchrun *"),
        (TORCHRUN, 2, "ranks-environment: two launchers disagree: torchrun: RANK = 1, WORLD_SIZE = 4"),
        (TORCHRUN, 1, "ranks-environment: --ranks 1"),
        // Those that `--ranks 3` started have the flag too.
        ("PLIMSOLL_LAUNCH=2/3:4000:4711", 3, "2/3 plimsoll *"),
        // Inherited from a run further up.
        ("PLIMSOLL_LAUNCH=2/3:4000:99", 4, "start 4"),
        ("SKYPILOT_NUM_NODES=2", 4, "ranks-hosts: SKYPILOT_NUM_NODES = 2"),
    ] {
        check(environment, Some(flag), expect);
    }
}

#[test]
fn half_of_an_environment_is_refused_with_what_was_read() {
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        check(&but(TORCHRUN, name, None), None, &format!("ranks-environment: {name}"));
    }
    for (environment, expect) in [
        (
            "RANK=0",
            "ranks-environment: half of an environment of torchrun: RANK = 0, and not WORLD_SIZE, LOCAL_RANK",
        ),
        ("WORLD_SIZE=4", "ranks-environment: WORLD_SIZE = 4, and not RANK"),
        (&but(SRUN, "SLURM_LOCALID", None), "ranks-environment: and not SLURM_LOCALID"),
        (&but(OPEN_MPI, "OMPI_COMM_WORLD_SIZE", None), "ranks-environment: and not OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK=0 PMI_SIZE=2", "ranks-environment: and not MPI_LOCALRANKID, MPI_LOCALNRANKS"),
    ] {
        check(environment, None, expect);
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    for (environment, expect) in [
        (&*but(TORCHRUN, "RANK", Some("one")), "ranks-environment: RANK = \"one\" is no number"),
        (&but(TORCHRUN, "RANK", Some("-1")), "ranks-environment: RANK = \"-1\""),
        (&but(TORCHRUN, "RANK", Some("")), "ranks-environment: RANK = \"\""),
        (&but(TORCHRUN, "RANK", Some("4")), "ranks-environment: rank 4 of 4: ranks count from 0"),
        (&but(TORCHRUN, "WORLD_SIZE", Some("0")), "ranks-environment: is 0"),
        (&but(TORCHRUN, "LOCAL_RANK", Some("4")), "ranks-environment: local rank 4 of 4"),
        (&but(TORCHRUN, "LOCAL_WORLD_SIZE", Some("8")), "ranks-environment: cannot be a part of 4"),
        (&but(TORCHRUN, "MASTER_PORT", Some("0")), "ranks-environment: MASTER_PORT = \"0\" is no port"),
        (&but(TORCHRUN, "MASTER_PORT", Some("65536")), "ranks-environment: MASTER_PORT"),
        (&but(SRUN, "SLURM_STEP_TASKS_PER_NODE", Some("4(x")), "ranks-environment: is no list"),
        (&but(SRUN, "SLURM_STEP_TASKS_PER_NODE", Some("4(x999999999)")), "ranks-environment: is no list"),
        (&but(SRUN, "SLURM_NODEID", Some("1")), "ranks-environment: lists 1 nodes"),
        ("PLIMSOLL_LAUNCH=2of3", "ranks-environment: RANK/RANKS:PORT:PID"),
        ("PLIMSOLL_LAUNCH=3/3:4000:4711", "ranks-environment: ranks count from 0"),
        ("PET_NNODES=many", "ranks-environment: PET_NNODES"),
        (
            "RANK=0 WORLD_SIZE=100 LOCAL_RANK=0 LOCAL_WORLD_SIZE=100 MASTER_ADDR=a MASTER_PORT=1",
            "ranks-environment: 100 ranks, and at most 64",
        ),
    ] {
        check(environment, None, expect);
    }
}

#[test]
fn two_sets_that_disagree_are_refused_and_nested_ones_agree() {
    let both = |one: &str, other: &str| format!("{one} {other}");
    for (environment, expect) in [
        // torchrun in a step of one task, and srun that serves MPICH's interface too.
        (
            both(TORCHRUN, "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0"),
            "1/4 torchrun *",
        ),
        (both(SRUN, "PMI_RANK=2 PMI_SIZE=4"), "2/4 srun *"),
        (
            both(&but(TORCHRUN, "RANK", Some("2")).replace("LOCAL_RANK=1", "LOCAL_RANK=2"), SRUN),
            "2/4 torchrun *",
        ),
        (both(TORCHRUN, SRUN), "ranks-environment: two launchers disagree: torchrun: RANK = 1"),
        (both(OPEN_MPI, MPICH), "ranks-environment: Open MPI: OMPI"),
    ] {
        check(&environment, None, expect);
    }
}

#[test]
fn several_hosts_are_refused_by_name() {
    for (environment, contains) in [
        (&*but(TORCHRUN, "LOCAL_WORLD_SIZE", Some("2")), "4 ranks, 2 of them on this host"),
        (
            &but(SRUN, "SLURM_STEP_TASKS_PER_NODE", Some("3(x2)")).replace("TASKS=4", "TASKS=6"),
            "6 ranks, 3 of them",
        ),
        (&but(OPEN_MPI, "OMPI_COMM_WORLD_SIZE", Some("8")), "8 ranks, 4 of them"),
        ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456", "these are 2 pods"),
        ("PET_NNODES=2 PET_NODE_RANK=1", "PET_NNODES = 2"),
        ("PET_NNODES=1:4", "1:4"),
        ("DSTACK_NODES_NUM=2", "DSTACK"),
        ("LWS_GROUP_SIZE=3", "LWS"),
    ] {
        check(environment, None, &format!("ranks-hosts: {contains}"));
    }
}

#[test]
fn starts_of_a_job_have_different_ids_and_jobs_different_ports() {
    let launch = |environment: &str| {
        let variables: Vec<(&str, &str)> =
            environment.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let get = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_string());
        match read(&get, &Flags { ranks: None, parent: PARENT }) {
            Ok(Found::Rank(launch)) => launch,
            other => panic!("{environment}: {other:?}"),
        }
    };
    let again = launch(&format!("{TORCHRUN} TORCHELASTIC_RESTART_COUNT=1"));
    assert_ne!(launch(TORCHRUN).id, again.id);
    let other = launch(&but(SRUN, "SLURM_JOB_ID", Some("8")));
    assert_ne!((launch(SRUN).id, launch(SRUN).port), (other.id, other.port));
    // Each node's own number counts.
    let nodes =
        "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2";
    assert_eq!(launch(nodes).local_ranks, 2);
    assert_eq!(tasks_per_node("4(x2),3"), Some(vec![4, 4, 3]));
}
