//! Programs that play episodes on their own: a run starts them, keeps their output, and restarts those that end.

use crate::job::JobEnd;
use crate::launch::Launch;
use crate::process::Process;
use crate::sandbox::Network;
use crate::words::{Unfinished, Words};
use plimsoll_base::{Bytes, Error, Result, slugs};

/// Lines of a program's stderr that its error quotes.
const LAST_LINES: usize = 8;

/// A program to start `count` times.
#[derive(Clone, Debug)]
pub struct AgentsSpec {
    /// The program, looked up in PATH, and its arguments.
    pub command: Vec<String>,
    pub count: usize,
    /// Memory limit of one, with all that it starts.
    pub memory: Bytes,
    /// Added to the environment of each, which also has its number as `PLIMSOLL_AGENT`.
    pub env: Vec<(String, String)>,
    /// Where their output goes.
    pub words: Words,
}

/// The programs of a run. Dropping it ends them, with all that they started.
pub struct Agents {
    spec: AgentsSpec,
    running: Vec<Option<Agent>>,
}

struct Agent {
    process: Process,
    printed: Unfinished,
}

/// How a program ended.
#[derive(Debug)]
pub struct AgentEnd {
    /// Its number, as in `PLIMSOLL_AGENT`.
    pub number: usize,
    /// True if it exited by itself with code 0.
    pub was_well: bool,
    pub error: Error,
}

impl Agents {
    /// Starts all programs.
    ///
    /// Errors: `agent-failing`.
    pub fn start(spec: AgentsSpec) -> Result<Agents> {
        let mut agents = Agents { running: (0..spec.count).map(|_| None).collect(), spec };
        (0..agents.spec.count).try_for_each(|number| agents.restart(number))?;
        Ok(agents)
    }

    /// Restarts one that has ended.
    ///
    /// Errors: `agent-failing`.
    pub fn restart(&mut self, number: usize) -> Result<()> {
        let AgentsSpec { command, memory, env, words, .. } = &self.spec;
        let mut env = env.clone();
        env.push(("PLIMSOLL_AGENT".into(), number.to_string()));
        let launch = Launch {
            name: name_of(number),
            program: command.first().cloned().unwrap_or_default(),
            args: command.iter().skip(1).cloned().collect(),
            env,
            memory: *memory,
            is_private: true,
            memory_groups: true,
            network: Network::Allow,
            folder: None,
            file: None,
            words: Some(words.clone()),
            ready: None,
        };
        let process = Process::start(&launch).map_err(|error| {
            let message = format!("{} (`{}`) was not started", name_of(number), command.join(" "));
            Error::new("agent-failing", message)
                .fact(error.message)
                .hint("check that environment.command names a program in PATH")
        })?;
        self.running[number] = Some(Agent { process, printed: Unfinished::default() });
        Ok(())
    }

    /// Forwards their output, and returns those that have ended since the last call.
    pub fn look(&mut self) -> Vec<AgentEnd> {
        let mut ends = Vec::new();
        for (number, running) in self.running.iter_mut().enumerate() {
            let Some(agent) = running else { continue };
            agent.hear(number, &self.spec.words);
            let Some(end) = agent.process.ended() else { continue };
            agent.hear(number, &self.spec.words);
            self.spec.words.end_line(&name_of(number), &mut agent.printed);
            agent.process.listen_to_end();
            let error = agent.error(number, end);
            ends.push(AgentEnd { number, was_well: end.code == Some(0) && end.over.is_none(), error });
            *running = None;
        }
        ends
    }
}

impl Drop for Agents {
    /// Keeps their last output.
    fn drop(&mut self) {
        for (number, agent) in self.running.iter_mut().enumerate() {
            let Some(agent) = agent else { continue };
            agent.hear(number, &self.spec.words);
            self.spec.words.end_line(&name_of(number), &mut agent.printed);
            agent.process.listen_to_end();
        }
    }
}

impl Agent {
    fn hear(&mut self, number: usize, words: &Words) {
        self.process.read();
        let printed = self.process.take_output();
        words.hear(&name_of(number), &mut self.printed, &printed);
        self.process.listen();
    }

    fn error(&self, number: usize, end: JobEnd) -> Error {
        let (slug, how) = match (self.process.over(end), end.code, end.signal) {
            (Some(over), _, _) => {
                (slugs::TEXT_ENVIRONMENT_OVER_BUDGET, format!("held {over}, and was ended"))
            }
            (_, Some(code), _) => ("text-environment-crashed", format!("ended with exit code {code}")),
            (_, _, Some(signal)) => ("text-environment-crashed", format!("was killed by signal {signal}")),
            _ => ("text-environment-crashed", "ended with its keeper".to_string()),
        };
        let error = Error::new(slug, format!("{} {how}", name_of(number)));
        let lines = self.process.last_lines(LAST_LINES);
        lines.into_iter().fold(error, |error, line| error.fact(format!("stderr: {line}")))
    }
}

fn name_of(number: usize) -> String {
    format!("agent {number}")
}
