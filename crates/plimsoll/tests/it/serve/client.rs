//! A server that ends with its test, and a plain client.

#[path = "../../../../serve/tests/it/client.rs"]
mod plain;

use crate::common::command;
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::process::{Child, ExitStatus, Stdio};

use plain::Client;

pub struct Server {
    child: Child,
    client: Client,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn start(args: &[&str]) -> Server {
        Server::start_with(args, &[])
    }

    pub fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut command = command(&[&["serve", "--port", "0", "--quiet"], args].concat());
        command.envs(variables.iter().copied()).stderr(Stdio::inherit());
        Server::of(command.stdout(Stdio::piped()).spawn().expect("the binary runs"))
    }

    /// One that says what it has planned, in its own words.
    pub fn start_with_words(args: &[&str]) -> (Server, String) {
        let mut command = command(&[&["serve", "--port", "0"], args].concat());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut words = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut words).expect("its words");
        (Server::of(child), words)
    }

    fn of(mut child: Child) -> Server {
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its address");
        let at = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/v1"));
        let port = at.unwrap_or_else(|| panic!("no address: {line:?}")).rsplit_once(':').expect("a port").1;
        let at = format!("127.0.0.1:{port}");
        Server { child, client: Client { at } }
    }

    /// The most memory that the process had, in MiB.
    pub fn peak_mib(&self) -> f64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
        let kib: f64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
        kib / 1024.0
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let done = std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill -{name} {pid}");
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }
}
