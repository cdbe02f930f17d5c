//! Decides what ended a run of several ranks: collects the signs of all ranks at rank 0's supervisor and picks the one
//! that explains the others. A state machine without sockets or clocks: each call passes the time.
//!
//! A dead rank makes the others fail too, often before its own supervisor has found the evidence. So the first sign
//! starts a short wait, and then the strongest evidence decides, not the first message.

use crate::board::{Beat, Row, State};
use crate::hello::Member;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// From the first sign to the verdict.
const SIGNS_TIME: Duration = Duration::from_millis(500);
/// A supervisor silent for longer is lost; it reports five times a second.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(2);
/// The limit for one on another host than rank 0's: a message that is lost four times, which happens where one packet
/// in twenty is, arrives within this time.
pub(crate) const SILENCE_APART_MAX: Duration = Duration::from_secs(5);
/// Gap that counts as a pause of this process, for example by Ctrl-Z: messages sent meanwhile are still unread.
const OWN_PAUSE: Duration = Duration::from_secs(1);
/// After such a pause, ranks that gave up on it end within this time: a supervisor gives its trainer ten seconds.
const GIVEN_UP_MAX: Duration = Duration::from_secs(15);
/// A trainer stopped for this long is reported by the others. Its own supervisor reports it after the same time.
const STOPPED_TOLD: Duration = Duration::from_secs(2);
/// After this wait, or half of the longest allowed if shorter, users learn which rank the others wait for.
const SLOW_TOLD: Duration = Duration::from_secs(30);

/// Why a trainer ended, strongest evidence first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Killed, with evidence of who did it.
    KilledProven,
    /// Died of its own fault signal.
    Crashed,
    /// Killed; by which process is not proven.
    Killed,
    /// Ended with an error.
    Failed,
    /// A signal stopped it, and it was not continued.
    Stopped,
    /// The others waited for it too long.
    Slow,
    /// It did not end after another rank had ended well.
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
    /// Returns true if it finished, or ended as the user asked.
    pub fn is_well(self) -> bool {
        matches!(self, Cause::Interrupted | Cause::Finished)
    }

    fn verb(self) -> &'static str {
        match self {
            Cause::KilledProven | Cause::Killed => "was killed",
            Cause::Crashed => "crashed",
            Cause::Failed => "failed",
            Cause::Stopped => "was stopped",
            Cause::Slow => "is too slow",
            Cause::Late => "did not end",
            Cause::Silent => "was lost",
            Cause::Secondary => "ended first",
            Cause::Interrupted => "was interrupted",
            Cause::Finished => "finished",
        }
    }
}

/// The end of a trainer, as its supervisor reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    pub cause: Cause,
    /// One sentence, including the trainer's place in the run.
    pub sentence: String,
    pub exit: u8,
}

/// Why the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub member: Member,
    pub cause: Cause,
    pub sentence: String,
    /// Number of ranks that ended because of it.
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

/// Says what the hub reports after looking at all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    Verdict(Verdict),
    /// A trainer is stopped, and the others wait.
    Stopped(String),
    Continued(String),
    /// The others wait for a rank that computes.
    Slow(String),
}

#[derive(Debug)]
struct Rank {
    member: Member,
    /// Longest silence of its supervisor.
    silence_max: Duration,
    heard: Instant,
    beat: Beat,
    stopped: Option<Instant>,
    stop_is_told: bool,
    ending: Option<Ending>,
    /// Why its connection is closed.
    gone: Option<String>,
    /// The strongest sign so far, with the time of the first.
    sign: Option<(Cause, Instant, String)>,
}

/// All ranks of a run, in order.
#[derive(Debug)]
pub(crate) struct Ranks {
    ranks: Vec<Rank>,
    /// How long ranks may wait for each other.
    wait_max: Duration,
    looked: Instant,
    /// The last pause of this process: when it ended, and its length.
    own_pause: Option<(Instant, Duration)>,
    well: Option<Instant>,
    /// Ranks already named as slow, each with the phase.
    slow_told: Vec<(u32, String)>,
    verdict: bool,
}

/// Holds what judging one rank needs to know of the others.
#[derive(Clone, Copy, Debug)]
struct OtherRanks {
    /// When the first rank ended well.
    well: Option<Instant>,
    /// The longest current wait of a rank, and the longest allowed.
    waiting: Duration,
    wait_max: Duration,
    /// Whether any rank computes, and the fewest barriers that a rank has reached.
    any_computes: bool,
    fewest_arrivals: u64,
}

impl Ranks {
    /// `wait_max`: how long ranks may wait for one that is stopped, computes, or runs on after another ended well.
    pub(crate) fn new(members: &[Member], wait_max: Duration, now: Instant) -> Ranks {
        let rank = |member: &Member| Rank {
            member: member.clone(),
            silence_max: silence_max(&members[0], member),
            heard: now,
            beat: Beat::default(),
            stopped: None,
            stop_is_told: false,
            ending: None,
            gone: None,
            sign: None,
        };
        Ranks {
            ranks: members.iter().map(rank).collect(),
            wait_max,
            looked: now,
            own_pause: None,
            well: None,
            slow_told: Vec::new(),
            verdict: false,
        }
    }

    pub(crate) fn wait_max(&self) -> Duration {
        self.wait_max
    }

    pub(crate) fn beat(&mut self, rank: usize, beat: Beat, now: Instant) {
        let rank = &mut self.ranks[rank];
        rank.heard = now;
        rank.stopped = beat.is_stopped().then(|| rank.stopped.unwrap_or(now));
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

    /// Returns the signal of the first interrupted trainer, which the others must get too.
    pub(crate) fn interrupted(&self) -> Option<i32> {
        let ended = self.ranks.iter().filter_map(|rank| rank.ending.as_ref());
        ended
            .filter(|ending| ending.cause == Cause::Interrupted)
            .map(|ending| if ending.exit == 130 { 2 } else { 15 })
            .next()
    }

    /// Returns true once no rank other than 0 has more to report.
    pub(crate) fn others_are_over(&self) -> bool {
        let is_lost = |rank: &Rank| matches!(rank.sign, Some((Cause::Silent, ..)));
        self.ranks.iter().skip(1).all(|rank| rank.ending.is_some() || rank.gone.is_some() || is_lost(rank))
    }

    /// Returns what is new at `now`.
    pub(crate) fn look(&mut self, now: Instant) -> Vec<News> {
        let pause = now.saturating_duration_since(self.looked);
        if pause > OWN_PAUSE {
            self.ranks.iter_mut().for_each(|rank| rank.heard = now);
            self.own_pause = Some((now, pause));
        }
        self.looked = now;
        let around = self.around();
        self.ranks.iter_mut().enumerate().for_each(|(number, rank)| rank.look(number, around, now));
        let mut news: Vec<News> = self.ranks.iter_mut().skip(1).filter_map(|rank| rank.pause(now)).collect();
        news.extend(self.slow(around));
        news.extend(self.decide(now).map(News::Verdict));
        news
    }

    /// Returns one row per rank.
    pub(crate) fn rows(&self, now: Instant) -> Vec<Row> {
        let row = |(number, rank): (usize, &Rank)| Row::of(&rank.member, &rank.beat, rank.state(number, now));
        self.ranks.iter().enumerate().map(row).collect()
    }

    fn around(&self) -> OtherRanks {
        let live = || self.ranks.iter().filter(|rank| rank.ending.is_none() && rank.gone.is_none());
        OtherRanks {
            well: self.well,
            waiting: Duration::from_millis(live().map(|rank| rank.beat.waiting_ms).max().unwrap_or(0)),
            wait_max: self.wait_max,
            any_computes: live().any(|rank| rank.beat.computes()),
            fewest_arrivals: live().map(|rank| rank.beat.arrivals).min().unwrap_or(0),
        }
    }

    /// Names the ranks that the others have waited for, each once per phase.
    fn slow(&mut self, around: OtherRanks) -> Vec<News> {
        let waiting = around.waiting;
        let has_sign = self.ranks.iter().any(|rank| rank.sign.is_some() || rank.ending.is_some());
        if has_sign || waiting < SLOW_TOLD.min(self.wait_max / 2) {
            return Vec::new();
        }
        let is_slow = |beat: &Beat| beat.computes() || around.is_last(beat);
        let waiters =
            self.ranks.iter().filter(|rank| rank.beat.waiting_ms > 0 && !is_slow(&rank.beat)).count();
        let mut news = Vec::new();
        for Rank { member, beat, .. } in self.ranks.iter().filter(|rank| is_slow(&rank.beat)) {
            let place = (member.rank, beat.phase.clone());
            if !self.slow_told.contains(&place) {
                self.slow_told.push(place);
                let (who, seconds, doing) = (member.words(), waiting.as_secs(), &beat.doing);
                let waiters = match waiters {
                    1 => "1 rank has".to_string(),
                    n => format!("{n} ranks have"),
                };
                let worker = match beat.worker.as_str() {
                    "" => String::new(),
                    worker => format!("; it waits for its worker {worker}"),
                };
                news.push(News::Slow(format!(
                    "{who} is slow: {waiters} waited {seconds} s for its trainer, pid {}, {doing}{worker}",
                    beat.trainer
                )));
            }
        }
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
        // A lost supervisor is noticed in this time, and so is a network that failed at one end first.
        let silence_max = self.ranks.iter().map(|rank| rank.silence_max).max().unwrap_or(SILENCE_MAX);
        let cause_time = silence_max + SIGNS_TIME;
        let is_over = || self.ranks.iter().all(|rank| rank.ending.is_some() || rank.gone.is_some());
        // Ranks ended for another one, but none gives a cause: this process was silent, and they gave up on it.
        let paused = match (cause, self.own_pause) {
            (Cause::Secondary, Some((end, pause))) if now.saturating_duration_since(end) < GIVEN_UP_MAX => {
                Some(pause)
            }
            // The cause is still to be told.
            (Cause::Secondary, _) if now.saturating_duration_since(first) < cause_time && !is_over() => {
                return None;
            }
            _ => None,
        };
        let (rank, cause, sentence) = match paused {
            None => (rank, *cause, sentence.clone()),
            Some(pause) => {
                let (own, seconds) = (&self.ranks[0], pause.as_secs());
                let sentence = format!(
                    "its supervisor was stopped, or had no processor, for {seconds} s, and the others gave it up{}",
                    own.doing()
                );
                (own, Cause::Silent, sentence)
            }
        };
        let ended_alone = |other: &&Rank| {
            other.member.rank != rank.member.rank
                && other.ending.as_ref().is_none_or(|ending| ending.cause == Cause::Secondary)
        };
        let is_silent = |rank: &Rank| matches!(rank.sign, Some((Cause::Silent, ..)));
        let is_cut_off = self.ranks.len() > 2 && self.ranks.iter().skip(1).all(is_silent);
        let cut_off =
            if is_cut_off { "; no rank is heard any more, so rank 0 may be the one cut off" } else { "" };
        let is_waited_for = matches!(cause, Cause::Slow | Cause::Stopped);
        let says = |other: &&Rank| {
            is_waited_for && other.member.rank != rank.member.rank && !other.beat.waits_for.is_empty()
        };
        let waiter = self.ranks.iter().find(says).map_or(String::new(), |other| {
            format!("; rank {} waits for {}", other.member.rank, other.beat.waits_for)
        });
        let verdict = Verdict {
            member: rank.member.clone(),
            cause,
            sentence: format!("{sentence}{waiter}{cut_off}"),
            others: self.ranks.iter().filter(ended_alone).count() as u32,
        };
        self.verdict = true;
        Some(verdict)
    }
}

/// Returns how long the supervisors of two ranks may hear nothing of each other.
pub(crate) fn silence_max(one: &Member, other: &Member) -> Duration {
    if one.site == other.site { SILENCE_MAX } else { SILENCE_APART_MAX }
}

impl OtherRanks {
    /// Returns true if no rank computes and this one has reached the fewest barriers: it hangs in a wait.
    fn is_last(&self, beat: &Beat) -> bool {
        !self.any_computes && !beat.is_stopped() && beat.arrivals == self.fewest_arrivals
    }
}

impl Rank {
    /// Records a sign stronger than the last.
    fn look(&mut self, number: usize, around: OtherRanks, now: Instant) {
        let Some((cause, sentence)) = self.now(number, around, now) else { return };
        match &mut self.sign {
            None => self.sign = Some((cause, now, sentence)),
            Some((before, _, words)) if cause < *before => (*before, *words) = (cause, sentence),
            Some(_) => {}
        }
    }

    /// Returns true if its supervisor is lost. Rank 0 is this process, which is never silent.
    fn is_silent(&self, number: usize, now: Instant) -> bool {
        number > 0 && now.saturating_duration_since(self.heard) >= self.silence_max
    }

    fn state(&self, number: usize, now: Instant) -> State {
        match self.ending.as_ref().map(|ending| ending.cause) {
            Some(Cause::Finished) => State::Finished,
            Some(Cause::Interrupted) => State::Interrupted,
            Some(_) => State::Ended,
            None if self.gone.is_some() || self.is_silent(number, now) => State::Lost,
            None if self.beat.phase.is_empty() => State::Starts,
            None if self.beat.is_stopped() => State::Stopped,
            None if self.beat.waiting_ms > 0 => State::Waits,
            None => State::Computes,
        }
    }

    /// Returns its place in the run, to end a sentence.
    fn doing(&self) -> String {
        match self.beat.doing.as_str() {
            "" => String::new(),
            doing => format!(", {doing}"),
        }
    }

    fn now(&self, number: usize, around: OtherRanks, now: Instant) -> Option<(Cause, String)> {
        let doing = self.doing();
        if let Some(ending) = &self.ending {
            return (!ending.cause.is_well()).then(|| (ending.cause, ending.sentence.clone()));
        }
        if let Some(why) = &self.gone {
            return Some((Cause::Silent, format!("{why}{doing}")));
        }
        if self.is_silent(number, now) {
            let seconds = now.saturating_duration_since(self.heard).as_secs();
            return Some((Cause::Silent, format!("its supervisor was silent for {seconds} s{doing}")));
        }
        let OtherRanks { well, waiting, wait_max, .. } = around;
        let is_over =
            |at: Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) >= wait_max);
        let (seconds, pid) = (wait_max.as_secs(), self.beat.trainer);
        if is_over(self.stopped) {
            let sentence = format!("a signal stopped its trainer, pid {pid}, for {seconds} s{doing}");
            return Some((Cause::Stopped, sentence));
        }
        if waiting >= wait_max && (self.beat.computes() || around.is_last(&self.beat)) {
            let sentence = format!("the others waited {seconds} s for its trainer, pid {pid}{doing}");
            return Some((Cause::Slow, sentence));
        }
        is_over(well).then(|| (Cause::Late, format!("another rank had ended well {seconds} s before{doing}")))
    }

    /// Returns news about a stop by a signal.
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
