//! Runs on several hosts of this machine. Each is a process namespace, whose processes neither see those of another nor
//! share memory with them, so that all data goes over the network as between machines.

use plimsoll_base::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

/// Starts `train` with `words` and the host's number on each host. Returns their outputs, by host.
///
/// Errors: `bench-failed`.
pub(crate) fn on_hosts(ranks: usize, hosts: usize, words: &[String]) -> Result<Vec<Output>> {
    let namespace = namespace().ok_or_else(|| {
        failed("this user may not make namespaces of processes".into())
            .hint("run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1")
    })?;
    let program = std::env::current_exe().map_err(|err| failed(format!("this program: {err}")))?;
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let port = port.map_err(|err| failed(format!("a port of 127.0.0.1: {err}")))?.port();
    let secret = secret()?;
    let start = |host: usize| {
        Command::new(namespace[0])
            .args(&namespace[1..])
            .arg(&program)
            .args(words)
            .args([format!("--ranks={ranks}"), format!("--hosts={hosts}"), format!("--host-rank={host}")])
            .arg(format!("--join=127.0.0.1:{port}"))
            .env("PLIMSOLL_TOKEN", &secret)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|err| failed(format!("starting host {host}: {err}")))
    };
    let children: Vec<Child> = (0..hosts).map(start).collect::<Result<_>>()?;
    // Read at once, or one would block on its own words while another is waited for.
    let threads: Vec<_> =
        children.into_iter().map(|child| thread::spawn(move || child.wait_with_output())).collect();
    let ended = |thread: thread::JoinHandle<std::io::Result<Output>>| {
        thread.join().expect("it only reads").map_err(|err| failed(format!("a host: {err}")))
    };
    threads.into_iter().map(ended).collect()
}

/// Returns a command prefix that makes a process a host; `None` if this user may not make namespaces.
pub(crate) fn namespace() -> Option<Vec<&'static str>> {
    let plain = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let mapped = [&plain[..1], &["--map-root-user"], &plain[1..]].concat();
    let works = |words: &Vec<&str>| {
        let ran = Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    [plain, mapped].into_iter().find(works)
}

/// Returns a new secret for each start, which only this process's children need: 32 hexadecimal digits of the kernel's
/// generator.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|err| failed(format!("/dev/urandom: {err}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn failed(message: String) -> Error {
    Error::new("bench-failed", message)
}
