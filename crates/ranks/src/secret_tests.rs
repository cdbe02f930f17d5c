//! All launchers on one host and on several: who needs a secret, and which words a missing or a short one gets.

use super::*;
use crate::environment::{Flags, Found, read};
use crate::hosts::Callers;
use crate::knock::{MAGIC, REFUSAL};
use crate::message::{Message, Way};
use crate::strangers::Strangers;
use crate::token::{NONCE_BYTES, Side, Token};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

const LONG: &str = "0123456789abcdef";
const SHORT: &str = "0123456789abcde";

/// A launcher's variables on one host and on several, and a part of the hint that says how it carries the secret.
const LAUNCHERS: [(&str, &str, &str); 12] = [
    (
        "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=29500",
        "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=7",
        "export it on each host",
    ),
    (
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=4",
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2]",
        "before srun",
    ),
    (
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=j",
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=j MASTER_ADDR=n1",
        "mpirun -x PLIMSOLL_TOKEN",
    ),
    (
        "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2",
        "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 PMI_JOBID=j MASTER_ADDR=n1",
        "mpiexec -genvlist PLIMSOLL_TOKEN",
    ),
    (
        "PLIMSOLL_LAUNCH=0/2:0/2:4000:9:127.0.0.1",
        "PLIMSOLL_LAUNCH=0/2:0/1:4000:9:n1",
        "export it on each host",
    ),
    (
        "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=2",
        "PET_NNODES=2 PET_NODE_RANK=0 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=n1 PET_MASTER_PORT=29400",
        "secretKeyRef",
    ),
    ("RANK=0 WORLD_SIZE=1", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=23456", "secretKeyRef"),
    ("LWS_GROUP_SIZE=1", "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=n1", "secretKeyRef"),
    (
        "SKYPILOT_NUM_NODES=1",
        "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=1 SKYPILOT_NODE_IPS=10.0.0.5 SKYPILOT_TASK_ID=t",
        "sky launch --secret",
    ),
    (
        "DSTACK_NODES_NUM=1",
        "DSTACK_NODES_NUM=2 DSTACK_NODE_RANK=1 DSTACK_MASTER_NODE_IP=10.1.0.2 DSTACK_RUN_NAME=r",
        "dstack secret set",
    ),
    ("", "FLAGS=2", "`plimsoll launch` writes files"),
    ("JOB_COMPLETION_INDEX=1", "FLAGS=2 JOB_COMPLETION_INDEX=1", "`plimsoll launch` writes files"),
];

/// Reads an environment, with flags if it says so.
fn found(environment: &str) -> Found {
    let variables: Vec<(&str, &str)> =
        environment.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    let get = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_string());
    let by_flags = get("FLAGS").is_some();
    let has_index = get("JOB_COMPLETION_INDEX").is_some();
    let flags = Flags {
        ranks: None,
        hosts: by_flags.then_some(2),
        host_rank: (by_flags && !has_index).then_some(0),
        join: by_flags.then_some("n1"),
        parent: 9,
    };
    read(&get, &flags).expect(environment)
}

/// Returns the slug, message and hints of what a launcher's ranks, or the process that starts them, get for `secret`.
fn asked(environment: &str, secret: Option<&str>) -> std::result::Result<(), [String; 3]> {
    let result = match found(environment) {
        Found::One => Ok(()),
        Found::Rank(launch) => Token::of(&launch, secret).map(drop),
        Found::Start(starts) if starts.hosts == 1 => Ok(()),
        Found::Start(starts) => of_hosts(&starts, secret).map(drop),
    };
    result.map_err(|error| [error.slug.to_string(), error.message.clone(), error.hints.join("\n")])
}

#[test]
fn ranks_on_several_hosts_need_a_secret_whoever_started_them() {
    for (_, several, carried) in LAUNCHERS {
        for (secret, part) in [
            (None, "without PLIMSOLL_TOKEN"),
            (Some(""), "without PLIMSOLL_TOKEN"),
            (Some(SHORT), "of 15 bytes, and a secret has 16 at least"),
        ] {
            let [slug, message, hints] = asked(several, secret).expect_err(several);
            assert_eq!(slug, "ranks-token", "{several}");
            assert!(message.contains(part) && !message.contains(SHORT), "{several}: {message}");
            assert!(hints.contains(carried) && hints.contains("openssl rand -hex 16"), "{several}: {hints}");
        }
        assert_eq!(asked(several, Some(LONG)), Ok(()), "{several}");
    }
}

#[test]
fn ranks_of_one_host_need_none() {
    for (one, ..) in LAUNCHERS {
        for secret in [None, Some(""), Some(SHORT), Some(LONG)] {
            assert_eq!(asked(one, secret), Ok(()), "{one}");
        }
    }
}

/// Shows what a launcher calls a job is public: with another secret, the same job has another token.
#[test]
fn a_token_of_several_hosts_follows_from_the_secret() {
    let launch = Launch {
        rank: 0,
        ranks: 2,
        local_rank: 0,
        local_ranks: 1,
        address: "n1".into(),
        port: 29_500,
        id: "torchrun:none:0".into(),
        launcher: Launcher::Torchrun,
    };
    let (one, other) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
    let proof = Token::of(&launch, Some(LONG)).expect("long").proof(Side::Joiner, &one, &other);
    for secret in [None, Some(""), Some("another secret of the same user")] {
        let guess = Token::new(&launch, secret);
        assert!(!guess.is_proof(&proof, Side::Joiner, &one, &other), "{secret:?}");
    }
}

/// A port of a run: rank 0's supervisor, or a trainer.
enum Port {
    Supervisor(TcpListener, Strangers),
    Trainer(Callers),
}

impl Port {
    /// Reads what has come. Returns how many were let in.
    fn turn(&mut self, token: &Token) -> usize {
        match self {
            Port::Supervisor(listener, strangers) => strangers.turn(listener, token).len(),
            Port::Trainer(callers) => callers.turn(&|rank, _| Some(format!("rank {rank}"))).len(),
        }
    }
}

/// Connects to a port, with a token or in silence. Returns how many were let in, and all bytes that the one who came
/// got.
fn come(is_trainer: bool, token: &Token, guess: Option<Token>) -> (usize, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut port = if is_trainer {
        Port::Trainer(Callers::new(listener, token.clone()).expect("a listener"))
    } else {
        Strangers::listen(&listener).expect("a listener");
        Port::Supervisor(listener, Strangers::default())
    };
    let dial = move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let mut got = Vec::new();
        if let Some(guess) = guess {
            let ours = [7; NONCE_BYTES];
            stream.write_all(&[&MAGIC[..], &ours].concat()).expect("it reads");
            got.resize(MAGIC.len() + NONCE_BYTES, 0);
            stream.read_exact(&mut got).expect("a greeting");
            let theirs = got[MAGIC.len()..].first_chunk().expect("a nonce");
            let knock = serde_json::to_vec(&Message::Knock { rank: 1, way: Way::Read }).expect("JSON");
            let length = (knock.len() as u32).to_le_bytes();
            let proof = guess.proof(Side::Joiner, &ours, theirs);
            stream.write_all(&[&proof[..], &length, &knock].concat()).expect("it reads");
        } else {
            stream.shutdown(Shutdown::Write).expect("it is open");
        }
        // The other side may close before it has read all.
        let _ = stream.read_to_end(&mut got);
        got
    };
    let stranger = std::thread::spawn(dial);
    let mut entered = 0;
    while !stranger.is_finished() {
        entered += port.turn(token);
        std::thread::yield_now();
    }
    (entered, stranger.join().expect("no panic"))
}

/// The table of launchers and strangers: `cargo test -p plimsoll-ranks a_stranger_with -- --nocapture` prints it. The
/// stranger has the port, the program, the run file and all that the launcher says of the job, and no secret.
#[test]
fn a_stranger_with_all_but_the_secret_is_let_in_by_no_launchers_ranks_and_shown_no_byte() {
    println!(
        "| launcher | without a secret the program says | strangers | let in | bytes of the run shown |"
    );
    println!("|---|---|---|---|---|");
    for (_, several, _) in LAUNCHERS {
        let [slug, ..] = asked(several, None).expect_err(several);
        let (name, launch, secret) = ranks_of(several);
        let token = Token::of(&launch, Some(&secret)).expect("a long secret");
        let public = [None, Some(""), Some(&*launch.id), Some(&*launch.address), secret.strip_prefix(LONG)];
        let (mut strangers, mut entered, mut shown) = (0, 0, 0);
        for is_trainer in [false, true] {
            let guesses = public.iter().map(|guess| Some(Token::new(&launch, *guess)));
            for guess in guesses.chain([None]) {
                let is_silent = guess.is_none();
                let (in_now, got) = come(is_trainer, &token, guess);
                let refused = MAGIC.len() + NONCE_BYTES;
                // The version, a random number, and a refusal, the same for all runs.
                let is_public = if is_silent {
                    got.is_empty()
                } else {
                    got.starts_with(&MAGIC) && got[refused..] == REFUSAL
                };
                assert!(in_now == 0 && is_public, "{several}: let in {in_now}, shown {got:?}");
                (strangers, entered) = (strangers + 1, entered + in_now);
                shown += got.len() - if is_silent { 0 } else { refused + REFUSAL.len() };
            }
            // One that has the secret is let in.
            let (in_now, _) = come(is_trainer, &token, Some(token.clone()));
            assert_eq!(in_now, 1, "{several}");
        }
        assert_eq!((&*slug, entered, shown), ("ranks-token", 0, 0), "{several}");
        println!("| {name} | `{slug}` | {strangers} | {entered} | {shown} |");
    }
}

/// Returns a launcher's name, a rank that it or the process that it starts has started, and that rank's secret.
fn ranks_of(environment: &str) -> (String, Launch, String) {
    match found(environment) {
        Found::One => panic!("{environment}: one process"),
        Found::Rank(launch) => (launch.launcher.name().into(), launch, LONG.into()),
        Found::Start(starts) => {
            let Starts { first, count, ranks, port, address, id, .. } = &starts;
            // As `launch.rs` starts them.
            let own = format!("PLIMSOLL_LAUNCH={first}/{ranks}:{first}/{count}:{port}:9:{address}");
            let Found::Rank(launch) = found(&own) else { panic!("{own}: no rank") };
            let index = if environment.contains("JOB_COMPLETION_INDEX") { ", numbered by a Job" } else { "" };
            (format!("{}{index}", starts.launcher.name()), launch, format!("{LONG}:{id}"))
        }
    }
}
