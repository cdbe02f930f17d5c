//! What ended a run of several ranks: the signs of all ranks, as rank 0's supervisor sees them, and the one that explains the
//! others. A state machine without sockets or clocks: it gets the time with each call.
//!
//! A dead rank makes the others fail too, often earlier than its own supervisor has found the evidence. So the first sign
//! starts a short wait, and then the strongest evidence decides, not the first message.

use crate::hello::Member;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// From the first sign to the verdict.
const SIGNS_TIME: Duration = Duration::from_millis(500);
/// A supervisor that is silent for longer is lost; it speaks every half second.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(2);
/// A pause of this process itself, for example by Ctrl-Z: what the others said meanwhile is not read yet.
const OWN_PAUSE: Duration = Duration::from_secs(1);
/// After this time that a trainer is stopped, others say that they wait for it. Its own supervisor says so after the same.
const STOPPED_TOLD: Duration = Duration::from_secs(2);
/// How long the others wait for a stopped trainer.
const STOPPED_MAX: Duration = Duration::from_secs(600);
/// How long a trainer may go on after another one ended well.
const LATE_MAX: Duration = Duration::from_secs(600);

/// Why a trainer ended, the strongest evidence first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Killed, with evidence of who did it.
    KilledProven,
    /// Died of a fault in it.
    Crashed,
    /// Killed; by whom is not proven.
    Killed,
    /// Ended with an error.
    Failed,
    /// A signal stopped it, and it was not continued.
    Stopped,
    /// It did not end after another one had ended well.
    Late,
    /// Its supervisor was silent, or its connection closed.
    Silent,
    /// Ended because another rank had ended.
    Secondary,
    /// Ended as the user asked.
    Interrupted,
    Finished,
}

impl Cause {
    /// True if it ended as it should, or as the user asked.
    pub fn is_well(self) -> bool {
        matches!(self, Cause::Interrupted | Cause::Finished)
    }

    fn verb(self) -> &'static str {
        match self {
            Cause::KilledProven | Cause::Killed => "was killed",
            Cause::Crashed => "crashed",
            Cause::Failed => "failed",
            Cause::Stopped => "was stopped",
            Cause::Late => "did not end",
            Cause::Silent => "was lost",
            Cause::Secondary => "ended first",
            Cause::Interrupted => "was interrupted",
            Cause::Finished => "finished",
        }
    }
}

/// The end of a trainer, as its supervisor tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    pub cause: Cause,
    /// One sentence, with its place in the run.
    pub sentence: String,
    pub exit: u8,
}

/// Why the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub member: Member,
    pub cause: Cause,
    pub sentence: String,
    /// Ranks that ended because of it.
    pub others: u32,
}

impl Verdict {
    /// Returns the sentence that all ranks print.
    pub fn words(&self) -> String {
        let (who, verb) = (self.member.words(), self.cause.verb());
        let ended = match self.others {
            1 => "1 other rank ended for it".to_string(),
            n => format!("{n} other ranks ended for it"),
        };
        format!("{who} {verb}: {}; {ended}", self.sentence)
    }
}

/// What a trainer does, as its supervisor reads it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Process id of the trainer; 0 before it is started.
    pub trainer: u32,
    /// Its state in /proc: `R`, `S`, `D`, `T` stopped, `Z` a zombie, `-` gone.
    pub state: char,
    /// For example `in step 7 of 200, phase update`.
    pub doing: String,
    /// Milliseconds since it began to do so.
    pub since_ms: u64,
    pub rss_bytes: u64,
}

/// What the hub tells after a look at all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    Verdict(Verdict),
    /// A trainer is stopped, and the others wait.
    Stopped(String),
    Continued(String),
}

#[derive(Debug)]
struct Rank {
    member: Member,
    heard: Instant,
    beat: Beat,
    stopped: Option<Instant>,
    stop_is_told: bool,
    ending: Option<Ending>,
    /// Why its connection is over.
    gone: Option<String>,
    /// The strongest sign so far, and when the first came.
    sign: Option<(Cause, Instant, String)>,
}

/// All ranks of a run, in order.
#[derive(Debug)]
pub(crate) struct Ranks {
    ranks: Vec<Rank>,
    looked: Instant,
    well: Option<Instant>,
    verdict: bool,
}

impl Ranks {
    pub(crate) fn new(members: &[Member], now: Instant) -> Ranks {
        let rank = |member: &Member| Rank {
            member: member.clone(),
            heard: now,
            beat: Beat::default(),
            stopped: None,
            stop_is_told: false,
            ending: None,
            gone: None,
            sign: None,
        };
        Ranks { ranks: members.iter().map(rank).collect(), looked: now, well: None, verdict: false }
    }

    pub(crate) fn beat(&mut self, rank: usize, beat: Beat, now: Instant) {
        let rank = &mut self.ranks[rank];
        rank.heard = now;
        rank.stopped = (beat.state == 'T').then(|| rank.stopped.unwrap_or(now));
        rank.beat = beat;
    }

    pub(crate) fn ended(&mut self, rank: usize, ending: Ending, now: Instant) {
        if ending.cause.is_well() {
            self.well.get_or_insert(now);
        }
        self.ranks[rank].heard = now;
        self.ranks[rank].ending.get_or_insert(ending);
    }

    pub(crate) fn gone(&mut self, rank: usize, why: &str) {
        self.ranks[rank].gone.get_or_insert_with(|| why.into());
    }

    /// Returns the signal of the first trainer that was interrupted, by which the others are to end as well.
    pub(crate) fn interrupted(&self) -> Option<i32> {
        let ended = self.ranks.iter().filter_map(|rank| rank.ending.as_ref());
        ended
            .filter(|ending| ending.cause == Cause::Interrupted)
            .map(|ending| if ending.exit == 130 { 2 } else { 15 })
            .next()
    }

    /// True once no other rank than 0 has anything more to say.
    pub(crate) fn others_are_over(&self) -> bool {
        let is_lost = |rank: &Rank| matches!(rank.sign, Some((Cause::Silent, ..)));
        self.ranks.iter().skip(1).all(|rank| rank.ending.is_some() || rank.gone.is_some() || is_lost(rank))
    }

    /// Returns what is new at `now`.
    pub(crate) fn look(&mut self, now: Instant) -> Vec<News> {
        if now.saturating_duration_since(self.looked) > OWN_PAUSE {
            self.ranks.iter_mut().for_each(|rank| rank.heard = now);
        }
        self.looked = now;
        let well = self.well;
        self.ranks.iter_mut().enumerate().for_each(|(number, rank)| rank.look(number, well, now));
        let mut news: Vec<News> = self.ranks.iter_mut().skip(1).filter_map(|rank| rank.pause(now)).collect();
        news.extend(self.decide(now).map(News::Verdict));
        news
    }

    fn decide(&mut self, now: Instant) -> Option<Verdict> {
        let signs = || self.ranks.iter().filter_map(|rank| Some((rank, rank.sign.as_ref()?)));
        let first = signs().map(|(_, (_, at, _))| *at).min()?;
        if self.verdict || now.saturating_duration_since(first) < SIGNS_TIME {
            return None;
        }
        let (rank, (cause, _, sentence)) =
            signs().min_by_key(|(rank, (cause, at, _))| (*cause, *at, rank.member.rank))?;
        let ended_alone = |other: &&Rank| {
            other.member.rank != rank.member.rank
                && other.ending.as_ref().is_none_or(|ending| ending.cause == Cause::Secondary)
        };
        let verdict = Verdict {
            member: rank.member.clone(),
            cause: *cause,
            sentence: sentence.clone(),
            others: self.ranks.iter().filter(ended_alone).count() as u32,
        };
        self.verdict = true;
        Some(verdict)
    }
}

impl Rank {
    /// Takes note of a stronger sign than the one before.
    fn look(&mut self, number: usize, well: Option<Instant>, now: Instant) {
        let Some((cause, sentence)) = self.now(number, well, now) else { return };
        match &mut self.sign {
            None => self.sign = Some((cause, now, sentence)),
            Some((before, _, words)) if cause < *before => (*before, *words) = (cause, sentence),
            Some(_) => {}
        }
    }

    fn now(&self, number: usize, well: Option<Instant>, now: Instant) -> Option<(Cause, String)> {
        let doing = match self.beat.doing.as_str() {
            "" => String::new(),
            doing => format!(", {doing}"),
        };
        if let Some(ending) = &self.ending {
            return (!ending.cause.is_well()).then(|| (ending.cause, ending.sentence.clone()));
        }
        if let Some(why) = &self.gone {
            return Some((Cause::Silent, format!("{why}{doing}")));
        }
        // Rank 0 is this process.
        let silent = now.saturating_duration_since(self.heard);
        if number > 0 && silent >= SILENCE_MAX {
            return Some((
                Cause::Silent,
                format!("its supervisor was silent for {} s{doing}", silent.as_secs()),
            ));
        }
        let since = |at: Option<Instant>, max| at.filter(|&at| now.saturating_duration_since(at) >= max);
        if since(self.stopped, STOPPED_MAX).is_some() {
            let seconds = STOPPED_MAX.as_secs();
            return Some((
                Cause::Stopped,
                format!("a signal stopped its trainer, pid {}, for {seconds} s{doing}", self.beat.trainer),
            ));
        }
        let seconds = LATE_MAX.as_secs();
        since(well, LATE_MAX)
            .map(|_| (Cause::Late, format!("another rank had ended well {seconds} s before{doing}")))
    }

    /// Returns what is new about a stop by a signal.
    fn pause(&mut self, now: Instant) -> Option<News> {
        let (who, pid) = (self.member.words(), self.beat.trainer);
        let is_long = self.stopped.is_some_and(|at| now.saturating_duration_since(at) >= STOPPED_TOLD);
        match (is_long, self.stop_is_told, self.stopped) {
            (true, false, _) => {
                self.stop_is_told = true;
                let doing = &self.beat.doing;
                Some(News::Stopped(format!(
                    "the other ranks wait for {who}: a signal stopped its trainer, pid {pid}, {doing}"
                )))
            }
            (_, true, None) => {
                self.stop_is_told = false;
                Some(News::Continued(format!("{who} goes on")))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
