//! A pool over small shell programs: order, deadlines, deaths, restarts.

use plimsoll_base::Bytes;
use plimsoll_worker::{Launch, Limits, Pool, Request};
use std::time::{Duration, Instant};

fn pool(script: &str, workers: u32, retries: u32, timeout_ms: u64) -> Pool {
    let launch = Launch {
        name: "test".into(),
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("WORD".into(), "yes".into())],
        memory: Bytes::mib(512),
        ready: None,
    };
    let timeout = Duration::from_millis(timeout_ms);
    Pool::start(launch, Limits { workers, timeout, start_timeout: timeout, retries }).expect("sh is there")
}

fn request(text: &str) -> Request {
    Request { bytes: text.as_bytes().to_vec(), reply_lines: text.lines().count() }
}

#[test]
fn request_i_goes_to_worker_i() {
    let mut pool = pool("while read -r line; do echo \"$$ $line $WORD\"; done", 3, 0, 20_000);
    let ids = pool.pids();
    for _ in 0..2 {
        let replies = pool.call(&[request("a\nb\n"), request("c\n"), request("d\n")]);
        let lines: Vec<Vec<String>> = replies.into_iter().map(Result::unwrap).collect();
        let say = |worker: usize, word: &str| format!("{} {word} yes", ids[worker]);
        assert_eq!(lines, [vec![say(0, "a"), say(0, "b")], vec![say(1, "c")], vec![say(2, "d")]]);
    }
    assert_eq!(pool.restarts(), 0);
}

#[test]
fn one_failure_leaves_the_others_their_answers() {
    let mut pool = pool("while read -r line; do [ \"$line\" = die ] && exit 7; echo ok; done", 2, 1, 20_000);
    let replies = pool.call(&[request("die\n"), request("live\n")]);
    let error = replies[0].as_ref().unwrap_err();
    assert_eq!(error.slug, "reward-worker-crashed");
    assert!(error.message.contains("exit code 7"), "{error}");
    assert_eq!(replies[1].as_ref().unwrap(), &["ok"]);
    // The retry was a restart; the next call starts a fresh worker again.
    assert_eq!(pool.restarts(), 1);
    assert!(pool.call(&[request("live\n"), request("live\n")]).iter().all(Result::is_ok));
    assert_eq!(pool.restarts(), 2);
}

#[test]
fn a_silent_worker_is_killed_with_its_children() {
    let mut pool = pool("sleep 300 & echo $! >&2; wait", 1, 0, 300);
    let start = Instant::now();
    let error = pool.call(&[request("x\n")]).remove(0).unwrap_err();
    assert_eq!(error.slug, "reward-worker-timeout");
    assert!(start.elapsed() < Duration::from_secs(10));
    let child: i32 =
        error.facts[0].trim_start_matches("stderr: ").trim().parse().expect("the script said its child's id");
    // A killed orphan is collected by init or stays a zombie; either way it runs no more.
    let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z"), "{state}");
}

#[test]
fn a_request_larger_than_the_pipe_goes_through_while_the_worker_answers() {
    let mut pool = pool("cat", 1, 0, 20_000);
    let text = "0123456789abcdef\n".repeat(100_000);
    let lines = pool.call(&[request(&text)]).remove(0).unwrap();
    assert_eq!((lines.len(), lines[99_999].as_str()), (100_000, "0123456789abcdef"));
}

#[test]
fn a_reply_without_end_is_refused() {
    let mut pool = pool("read -r line; yes | tr -d '\\n'", 1, 0, 60_000);
    assert_eq!(pool.call(&[request("x\n")]).remove(0).unwrap_err().slug, "reward-bad-reply");
}
