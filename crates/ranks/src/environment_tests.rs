//! Environments as launchers set them, and as they are when something is wrong.

use super::*;

const PARENT: u32 = 4711;

/// Returns what a case expects: one, `start N`, `RANK/RANKS launcher address:port`, or a slug with a part of its
/// message.
fn check(environment: &str, flag: Option<u32>, expect: &str) {
    let variables: Vec<(&str, &str)> =
        environment.split_whitespace().map(|pair| pair.split_once('=').expect("NAME=VALUE")).collect();
    let get = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_string());
    check_with(&get, &Flags { ranks: flag, parent: PARENT, ..Flags::default() }, environment, expect);
}

fn check_with(get: &dyn Fn(&str) -> Option<String>, flags: &Flags<'_>, environment: &str, expect: &str) {
    let found = match read(get, flags) {
        Ok(Found::One) => "one".to_string(),
        Ok(Found::Start(Starts { hosts: 1, ranks, .. })) => format!("start {ranks}"),
        Ok(Found::Start(Starts { first, count, ranks, address, port, .. })) => {
            format!("start {first}+{count}/{ranks} {address}:{port}")
        }
        Ok(Found::Rank(launch)) => {
            let Launch { rank, ranks, local_rank, local_ranks, address, port, launcher, .. } = &launch;
            let of_host = if (rank, ranks) == (local_rank, local_ranks) {
                String::new()
            } else {
                format!(" ({local_rank}/{local_ranks} here)")
            };
            format!("{rank}/{ranks}{of_host} {} {address}:{port}", launcher.name())
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
    assert!(is_expected, "{environment} with {flags:?}\nexpected {expect}\nfound    {found}");
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
        ("PLIMSOLL_LAUNCH=2/3:0/3:4000:4711:127.0.0.1", "2/3 plimsoll 127.0.0.1:4000"),
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
        ("PLIMSOLL_LAUNCH=2/3:0/3:4000:4711:127.0.0.1", 3, "2/3 plimsoll *"),
        // Inherited from a run further up.
        ("PLIMSOLL_LAUNCH=2/3:0/3:4000:99:127.0.0.1", 4, "start 4"),
        ("SKYPILOT_NUM_NODES=2", 4, "ranks-environment: SKYPILOT_NUM_NODES = 2, and SKYPILOT_NODE_RANK"),
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
        ("PLIMSOLL_LAUNCH=2of3", "ranks-environment: RANK/RANKS:FIRST/COUNT:PORT:PID:ADDRESS"),
        ("PLIMSOLL_LAUNCH=0/3:1/2:4000:4711:a", "ranks-environment: RANK/RANKS"),
        ("PLIMSOLL_LAUNCH=3/3:0/3:4000:4711:a", "ranks-environment: ranks count from 0"),
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
fn launchers_that_start_ranks_on_several_hosts_are_known() {
    let on_two = |environment: &str, address: &str| format!("{environment} MASTER_ADDR={address}");
    let srun = but(SRUN, "SLURM_STEP_TASKS_PER_NODE", Some("2(x2)")).replace("LOCALID=2", "LOCALID=0");
    let srun = srun.replace("NODELIST=n1", "NODELIST=n[1-2]").replace("NODEID=0", "NODEID=1");
    let open_mpi = but(OPEN_MPI, "OMPI_COMM_WORLD_SIZE", Some("8"));
    for (environment, expect) in [
        (
            &*but(&but(TORCHRUN, "LOCAL_WORLD_SIZE", Some("2")), "MASTER_ADDR", Some("10.0.0.1")),
            "1/4 (1/2 here) torchrun 10.0.0.1:29500",
        ),
        (&srun, "2/4 (0/2 here) srun n1:*"),
        (&on_two(&srun, "fe80::1"), "2/4 (0/2 here) srun fe80::1:*"),
        (&on_two(&open_mpi, "node-a"), "3/8 (3/4 here) Open MPI node-a:*"),
        (&open_mpi, "ranks-environment: Open MPI: 8 ranks, 4 of them on this host, and no address"),
        ("PLIMSOLL_LAUNCH=2/4:2/2:4000:4711:fe80::7", "2/4 (0/2 here) plimsoll fe80::7:4000"),
    ] {
        check(environment, None, expect);
    }
}

#[test]
fn nodes_of_a_list_are_read_as_far_as_the_first() {
    for (list, expect) in [
        ("n1", Some("n1")),
        ("n1,n2", Some("n1")),
        ("n[1-3,7]", Some("n1")),
        ("gpu-[007,009-012]", Some("gpu-007")),
        ("a[1-2]b[3-4]", Some("a1b3")),
        ("a[1-2],b[3-4]", Some("a1")),
        ("", None),
        ("n[", None),
        ("n[]", None),
    ] {
        assert_eq!(first_node(list).as_deref(), expect, "{list:?}");
    }
}

#[test]
fn launchers_that_start_one_process_a_host_leave_its_ranks_to_that() {
    let pet = "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29400";
    let pytorch = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456";
    let lws = "LWS_GROUP_SIZE=3 LWS_WORKER_INDEX=2 LWS_LEADER_ADDRESS=g-0.g.default";
    let sky = "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_GPUS_PER_NODE=8 SKYPILOT_TASK_ID=t";
    let dstack =
        "DSTACK_NODES_NUM=2 DSTACK_NODE_RANK=1 DSTACK_MASTER_NODE_IP=10.1.0.2 DSTACK_GPUS_PER_NODE=2";
    for (environment, ranks, expect) in [
        (pet, None, "start 4+4/8 job-node-0-0.job:29400"),
        (pet, Some(2), "start 1+1/2 job-node-0-0.job:29400"),
        (pet, Some(3), "ranks-environment: --ranks 3 are all ranks of 2 hosts"),
        (&but(pet, "PET_NPROC_PER_NODE", Some("auto")), None, "start 1+1/2 *"),
        (&but(pet, "PET_NODE_RANK", None), None, "ranks-environment: PET_NNODES = 2, and PET_NODE_RANK"),
        (&but(pet, "PET_NODE_RANK", Some("2")), None, "ranks-environment: host 2 of 2"),
        (&but(pet, "PET_MASTER_ADDR", None), None, "ranks-environment: no address of the first"),
        (&but(pet, "PET_NNODES", Some("1:4")), None, "ranks-hosts: PET_NNODES = 1:4: from 1 to 4 hosts"),
        (&but(pet, "PET_NNODES", Some("2:2")), None, "start 4+4/8 *"),
        (&but(pet, "PET_NPROC_PER_NODE", Some("64")), None, "ranks-environment: at most 64 ranks"),
        (pytorch, None, "start 1+1/2 job-master-0:23456"),
        (pytorch, Some(8), "start 4+4/8 job-master-0:23456"),
        (lws, Some(6), "start 4+2/6 g-0.g.default:*"),
        (&format!("{sky} SKYPILOT_NODE_IPS=10.0.0.5"), None, "start 0+8/16 10.0.0.5:*"),
        (sky, None, "ranks-environment: no address of the first"),
        (dstack, None, "start 2+2/4 10.1.0.2:*"),
        (&format!("{dstack} {sky}"), None, "ranks-environment: two launchers disagree: SKYPILOT"),
    ] {
        check(environment, ranks, expect);
    }
}

#[test]
fn flags_say_which_host_this_is() {
    let of = |ranks, hosts, host_rank, join| Flags { ranks, hosts, host_rank, join, parent: PARENT };
    let at = Some("10.0.0.1");
    for (environment, flags, expect) in [
        ("", of(Some(4), Some(2), Some(1), at), "start 2+2/4 10.0.0.1:29500"),
        ("", of(None, Some(2), Some(1), Some("a:5000")), "start 1+1/2 a:5000"),
        ("", of(None, Some(2), Some(0), Some("[fe80::1]:5000")), "start 0+1/2 fe80::1:5000"),
        ("", of(None, Some(2), Some(0), Some("[fe80::1]")), "start 0+1/2 fe80::1:29500"),
        ("", of(None, Some(2), Some(0), Some("fe80::1")), "start 0+1/2 fe80::1:29500"),
        ("JOB_COMPLETION_INDEX=1", of(Some(4), Some(2), None, at), "start 2+2/4 10.0.0.1:29500"),
        ("PET_NNODES=2 PET_NODE_RANK=1", of(Some(4), None, None, at), "start 2+2/4 10.0.0.1:*"),
        ("", of(Some(4), Some(1), None, None), "start 4"),
        (
            "",
            of(Some(4), None, Some(1), at),
            "ranks-environment: --host-rank 1 --join 10.0.0.1, without --hosts H",
        ),
        ("", of(Some(4), Some(2), None, at), "ranks-environment: without --host-rank h"),
        ("", of(Some(4), Some(2), Some(1), None), "ranks-environment: no address of the first"),
        ("", of(Some(4), Some(2), Some(2), at), "ranks-environment: host 2 of 2: hosts count from 0"),
        ("", of(Some(4), Some(0), Some(0), at), "ranks-environment: --hosts 0"),
        ("", of(Some(3), Some(2), Some(0), at), "ranks-environment: --ranks 3"),
        ("", of(Some(4), Some(2), Some(0), Some("a:b")), "ranks-environment: --join \"a:b\""),
        ("", of(Some(4), Some(2), Some(0), Some("")), "ranks-environment: --join \"\""),
        (
            "PET_NNODES=2 PET_NODE_RANK=1",
            of(None, Some(3), None, at),
            "ranks-environment: two launchers disagree: --hosts 3",
        ),
        (TORCHRUN, of(None, Some(2), Some(0), at), "ranks-environment: --hosts 2"),
    ] {
        let variables: Vec<(&str, &str)> =
            environment.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let get = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_string());
        check_with(&get, &flags, environment, expect);
    }
}

#[test]
fn starts_of_a_job_have_different_ids_and_jobs_different_ports() {
    let launch = |environment: &str| {
        let variables: Vec<(&str, &str)> =
            environment.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let get = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_string());
        match read(&get, &Flags { parent: PARENT, ..Flags::default() }) {
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
