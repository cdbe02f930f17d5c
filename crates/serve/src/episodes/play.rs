//! Drives the engine through the rollouts of a run: clients play the episodes of each to its end.

use super::carried::CarriedRound;
use super::episode::{Played, Progress};
use super::table::{EpisodeTable, Round};
use crate::Server;
use crate::driver::{Driver, LOOK};
use crate::gate::Admission;
use crate::state::QueuedRequest;
use plimsoll_base::{Error, Result};
use plimsoll_rollout::{GroupTimes, Live, RolloutStats};
use std::time::{Duration, Instant};

/// Longest time that an engine without work waits before it checks whether the last episode has ended.
const LOOK_AT_EPISODES: Duration = Duration::from_millis(2);

impl Server {
    /// Lets clients play the episodes of a rollout. `look` is called now and then, and ends it with an error.
    ///
    /// Errors: `agent-missing`; those of `look` and of the device.
    pub fn play(
        &self,
        live: Live<'_, '_, '_>,
        round: Round,
        look: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Vec<Played>, RolloutStats)> {
        let episodes = self.episodes();
        episodes.begin(round);
        let stats = self.play_to_end(live, look)?;
        Ok((episodes.take(), stats))
    }

    /// Lets clients play episodes of several steps to the end of one. Returns each, in their order, and the ticks of
    /// groups.
    ///
    /// Errors: those of `play`.
    pub fn play_carried(
        &self,
        live: Live<'_, '_, '_>,
        round: CarriedRound,
        look: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Vec<Progress>, GroupTimes, RolloutStats)> {
        let episodes = self.episodes();
        episodes.begin_carried(round);
        let stats = self.play_to_end(live, look)?;
        let (played, times) = episodes.take_carried();
        Ok((played, times, stats))
    }

    fn episodes(&self) -> &EpisodeTable {
        self.episodes.as_ref().expect("a server of a run has episodes")
    }

    /// Serves until every episode of the rollout has ended, or waits in `held` for the next one. `look` is called
    /// between passes, at most every `LOOK`.
    ///
    /// Errors: those of `look`, of the episodes and of the device.
    fn play_to_end(
        &self,
        live: Live<'_, '_, '_>,
        look: &mut dyn FnMut() -> Result<()>,
    ) -> Result<RolloutStats> {
        let (episodes, inbox) = (self.episodes(), &self.inbox);
        let mut driver = Driver::new(live, &self.state);
        driver.queue.append(&mut self.held.borrow_mut());
        let mut looked = Instant::now();
        let played = loop {
            if episodes.is_done() {
                break Ok(driver.live.stats());
            }
            if self.state.is_abandoned() {
                break Err(Error::new("internal", "the thread of connections has ended"));
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if let Err(error) = episodes.look(looked).and_then(|()| look()) {
                    break Err(error);
                }
            }
            match driver.turn(inbox) {
                Ok(true) => {}
                Ok(false) => {
                    driver.wait(inbox, LOOK_AT_EPISODES);
                }
                Err(error) => break Err(error),
            }
        };
        // What is still drawn belongs to episodes that are over.
        let over = Error::new("agent-episode-over", "the rollout has ended");
        driver.take_all(inbox);
        if played.is_ok() {
            let waits = |request: &QueuedRequest| matches!(request.admission(), Admission::Later);
            let (waiting, left) = driver.queue.drain(..).partition(waits);
            *self.held.borrow_mut() = waiting;
            driver.queue = left;
        }
        driver.fail_all(played.as_ref().err().unwrap_or(&over));
        played
    }
}
