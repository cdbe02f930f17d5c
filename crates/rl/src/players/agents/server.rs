//! Episodes that agents play: programs that own their loop, and ask the engine over HTTP what to say.
//!
//! During a rollout the engine answers at each episode's address. The sampled tokens become sequences to train on, with
//! their log-probabilities. An agent's rewards come at the ends of its episodes.

use crate::players::episodes::EpisodesRequest;
use crate::roles::Trainer;
use plimsoll_base::{Error, Result};
use plimsoll_config::{Environment, RunSpec};
use plimsoll_device::Sampling;
use plimsoll_infer::sampler::sampling;
use plimsoll_rollout::{EngineLimits, GroupTimes, RolloutStats};
use plimsoll_serve::episodes::{
    CarriedRound, EpisodeLimits, EpisodeTable, EpisodesSpec, Played as OfAgent, Progress, Round,
};
use plimsoll_serve::guard::{Guard, new_token};
use plimsoll_serve::{Server, Settings, Texts};
use plimsoll_textenv::{Agents, AgentsSpec, Start, Words};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// File of a run directory with the address for agents.
const ADDRESS: &str = "agent.json";
/// File of a run directory with the agents' output.
const AGENTS_LOG: &str = "agents.log";

/// The server of a run, and the programs that it started.
pub(super) struct AgentPlay {
    section: Environment,
    model: String,
    sampling: Sampling,
    stop: Vec<String>,
    keep_stop: bool,
    limits: EpisodeLimits,
    /// Maximum number of clients: the episodes under way.
    at_once: usize,
    token: String,
    address: SocketAddr,
    /// Open port; taken by the server at the first rollout.
    listener: Option<TcpListener>,
    words: Words,
    /// The file with the address, while there is one.
    told: Option<PathBuf>,
    serving: Option<Serving>,
}

struct Serving {
    table: Arc<EpisodeTable>,
    server: Server,
    agents: Option<Agents>,
}

impl AgentPlay {
    /// Takes the port at which agents will find the model. `prompt_tokens`: the longest prompt of the plan.
    ///
    /// Errors: `address-refused`, `io-error`.
    pub(super) fn open(run: &RunSpec, section: &Environment, prompt_tokens: usize) -> Result<AgentPlay> {
        let refused = |err: std::io::Error| {
            let message = format!("environment.port = {}: {err}", section.port);
            Error::new("address-refused", message).hint("set environment.port = 0 to take a free one")
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, section.port)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let limits = EpisodeLimits {
            turns: section.turns_max as usize,
            branches: run.branches_max(),
            prompt_tokens,
            response_tokens: run.response_tokens_max(),
            turn_tokens: run.rollout.max_new_tokens as usize,
        };
        Ok(AgentPlay {
            section: section.clone(),
            model: run.model.clone(),
            sampling: sampling(&run.rollout, run.seed),
            stop: run.rollout.stop.clone(),
            keep_stop: run.rollout.keep_stop,
            limits,
            at_once: run.prompts_under_way() as usize * run.rollout.group_size as usize,
            token: new_token()?,
            address,
            listener: Some(listener),
            words: Words::of_run(),
            told: None,
            serving: None,
        })
    }

    /// Writes the agents' output to the run directory, and the address too if they are started elsewhere.
    ///
    /// Errors: `write-failed`, `disk-full`.
    pub(super) fn write_to(&mut self, dir: &Path) -> Result<()> {
        self.words.write_to(&dir.join(AGENTS_LOG));
        if !self.section.command.is_empty() {
            return Ok(());
        }
        let path = dir.join(ADDRESS);
        let text = json!({ "url": self.url(), "token": self.token, "model": self.model }).to_string();
        // Only this user may read the token. An agent that waits for the file finds it whole.
        plimsoll_files::write_private(&path, text.as_bytes())?;
        self.told = Some(path);
        Ok(())
    }

    /// Takes the agents' output up to the end of step 1.
    pub(super) fn first_lines(&self) -> Vec<String> {
        self.words.first_lines()
    }

    /// Returns a line on where agents find the model.
    pub(super) fn words(&self, dir: &Path) -> String {
        if self.section.command.is_empty() {
            format!(
                "agents are waited for at {}; the token is in {}",
                self.url(),
                dir.join(ADDRESS).display()
            )
        } else {
            format!("agents: `{}`, at {}", self.section.command.join(" "), self.url())
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets agents play the episodes.
    pub(super) fn play(
        &mut self,
        trainer: &mut Trainer<'_>,
        asked: &EpisodesRequest<'_>,
    ) -> Result<(Vec<OfAgent>, RolloutStats)> {
        let most = self.section.restarts_max;
        let Serving { table, server, agents } = self.serving(trainer, asked)?;
        let starts = asked
            .starts
            .iter()
            .flat_map(|start| (0..asked.group_size).map(move |member| told(start, asked.group_size, member)));
        let round = Round {
            starts: starts.collect(),
            first_sample_id: asked.first_sample_id,
            sampling: asked.sampling,
        };
        let mut deaths = Deaths { most, count: 0, ended: 0, table };
        let mut look = || agents.as_mut().map_or(Ok(()), |agents| deaths.look(agents));
        trainer.live(|live| server.play(live, round, &mut look))
    }

    /// Lets agents go on with episodes to the end of a step.
    pub(super) fn play_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        asked: &EpisodesRequest<'_>,
        round: CarriedRound,
    ) -> Result<(Vec<Progress>, GroupTimes, RolloutStats)> {
        let most = self.section.restarts_max;
        let Serving { table, server, agents } = self.serving(trainer, asked)?;
        let mut deaths = Deaths { most, count: 0, ended: 0, table };
        let mut look = || agents.as_mut().map_or(Ok(()), |agents| deaths.look(agents));
        trainer.live(|live| server.play_carried(live, round, &mut look))
    }

    /// True if an agent may be playing an episode since an earlier step.
    pub(super) fn is_under_way(&self, sample_id: u64) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.table.is_under_way(sample_id))
    }

    /// Returns the server and its agents, which it starts for the first rollout.
    fn serving(&mut self, trainer: &Trainer<'_>, asked: &EpisodesRequest<'_>) -> Result<&mut Serving> {
        if self.serving.is_none() {
            self.serving =
                Some(self.start(&trainer.sampler.shape.engine, trainer.sampler.shape.spec.vocab, asked)?);
        }
        self.words.begin(asked.steps[0]);
        Ok(self.serving.as_mut().expect("it was started"))
    }

    fn start(&mut self, engine: &EngineLimits, vocab: u32, asked: &EpisodesRequest<'_>) -> Result<Serving> {
        let section = &self.section;
        let texts = Texts {
            tokenizer: asked.text.tokenizer.clone(),
            template: asked.text.template.clone(),
            system_prompt: asked.text.system_prompt.clone(),
            begins: asked.text.rules.begins,
            eos: asked.eos.to_vec(),
            vocab,
            images: None,
        };
        let settings = Settings {
            names: vec![self.model.clone(), "policy".to_string()],
            adapters: Vec::new(),
            sampling: self.sampling,
            stop: self.stop.clone(),
            keep_stop: self.keep_stop,
            queue: self.at_once,
            grace: Duration::ZERO,
            guard: Guard { token: Some(self.token.clone()), hosts: Vec::new() },
            // The update scores without masks.
            grammars: 0,
        };
        let [step, reset] = [section.step_timeout_ms, section.reset_timeout_ms].map(Duration::from_millis);
        let spec = EpisodesSpec {
            limits: self.limits,
            step_timeout: step,
            claim_timeout: reset,
            starts_agents: !section.command.is_empty(),
        };
        // Agents know the run's token, but not the secret from which the tokens of episodes are derived.
        let table = Arc::new(EpisodeTable::new(spec, &new_token()?));
        let listener = self.listener.take().expect("a run serves once");
        let clients = EngineLimits { samples: self.at_once.min(engine.samples), ..*engine };
        let server = Server::start(&clients, texts, settings, listener, Some(table.clone()))?;
        let agents = if section.command.is_empty() {
            None
        } else {
            Some(Agents::start(AgentsSpec {
                command: section.command.clone(),
                count: section.num_workers.value().unwrap_or(1) as usize,
                memory: section.worker_memory.0,
                env: vec![
                    ("PLIMSOLL_URL".into(), self.url()),
                    ("PLIMSOLL_TOKEN".into(), self.token.clone()),
                    ("PYTHONUNBUFFERED".into(), "1".into()),
                ],
                words: self.words.clone(),
            })?)
        };
        Ok(Serving { table, server, agents })
    }
}

impl Drop for AgentPlay {
    /// Removes the file with the address, where nothing answers any more.
    fn drop(&mut self) {
        if let Some(path) = &self.told {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Agents that end during a rollout.
struct Deaths<'d> {
    most: u32,
    count: u32,
    /// Number of agents that ended well, each after an episode.
    ended: usize,
    table: &'d EpisodeTable,
}

impl Deaths<'_> {
    /// Restarts agents that have ended. An end is a failure unless the agent ended well after an episode.
    ///
    /// Errors: `agent-failing`.
    fn look(&mut self, agents: &mut Agents) -> Result<()> {
        for end in agents.look() {
            self.table.agent_died(&end.number.to_string(), &end.error);
            let ended = self.table.num_ended();
            // An agent may end after each episode: every such end is matched with one ended episode.
            if end.was_well && ended > self.ended {
                self.ended += 1
            } else {
                self.count += 1
            }
            if self.count > self.most {
                let message = format!(
                    "agents ended {} times in one rollout, environment.restarts_max is {}",
                    self.count, self.most
                );
                let error = Error::new("agent-failing", message).fact(end.error.message);
                let error = end.error.facts.into_iter().fold(error, Error::fact);
                return Err(error.hint(format!("what agents print is in RUN/{AGENTS_LOG}")));
            }
            agents.restart(end.number)?;
        }
        Ok(())
    }
}

/// Returns the facts about an episode that its agent gets.
pub(super) fn told(start: &Start, group: usize, member: usize) -> Value {
    // 31 bits, as environments in Python get.
    json!({ "seed": start.draw(0)[0] >> 1, "index": start.index, "held_out": start.held_out, "group_size": group, "member": member })
}
