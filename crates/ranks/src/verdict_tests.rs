//! Cases of the verdict: which of several signs explains the others.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(600);

fn members(count: u32) -> Vec<Member> {
    (0..count)
        .map(|rank| Member {
            rank,
            host: "a".into(),
            site: 0,
            address: None,
            pid: 100 + rank,
            cpus: "0".into(),
        })
        .collect()
}

fn ending(cause: Cause) -> Ending {
    Ending { cause, sentence: format!("{cause:?}"), exit: 1 }
}

fn working() -> Beat {
    Beat { trainer: 7, state: 'R', doing: "in step 3 of 9, phase update".into(), ..Beat::default() }
}

fn verdicts(news: Vec<News>) -> Vec<Verdict> {
    news.into_iter().filter_map(|one| if let News::Verdict(it) = one { Some(it) } else { None }).collect()
}

/// Plays `events` (milliseconds, rank, what) with a look each 100 ms and beats of all who still live.
fn play(events: &[(u64, usize, What)]) -> (Vec<Verdict>, u64) {
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(4), WAIT_MAX, start);
    let mut silent = [false; 4];
    for ms in (0..5000).step_by(100) {
        let now = start + Duration::from_millis(ms);
        for (_, rank, what) in events.iter().filter(|(at, ..)| *at == ms) {
            match what {
                What::Ends(cause) => ranks.ended(*rank, ending(*cause), now),
                What::Closes => ranks.gone(*rank, "its connection closed"),
                What::Falls => {}
            }
            silent[*rank] |= !matches!(what, What::Ends(_));
        }
        for rank in (0..4).filter(|&rank| !silent[rank]) {
            ranks.beat(rank, working(), now);
        }
        let found = verdicts(ranks.look(now));
        if !found.is_empty() {
            return (found, ms);
        }
    }
    (Vec::new(), 5000)
}

#[derive(Clone, Copy)]
enum What {
    Ends(Cause),
    /// Its connection closes without a word.
    Closes,
    /// It falls silent.
    Falls,
}

#[test]
fn the_strongest_evidence_explains_the_others() {
    use Cause::*;
    use What::*;
    for (events, expect) in [
        // One sign alone.
        (&[(100, 2, Ends(KilledProven))][..], Some((2, KilledProven, 600))),
        (&[(100, 2, Ends(Failed))], Some((2, Failed, 600))),
        (&[(100, 2, Closes)], Some((2, Silent, 600))),
        (&[(100, 2, Falls)], Some((2, Silent, 2500))),
        (&[(100, 0, Ends(Crashed))], Some((0, Crashed, 600))),
        (&[(100, 3, Ends(Secondary))], Some((3, Secondary, 2600))),
        // A network that fails is noticed at one end first, and a lost supervisor after two seconds.
        (&[(100, 0, Ends(Secondary)), (1800, 1, Ends(Failed))], Some((1, Failed, 1800))),
        (&[(100, 0, Ends(Secondary)), (100, 1, Falls)], Some((1, Silent, 2000))),
        (
            &[
                (100, 0, Ends(Secondary)),
                (200, 1, Ends(Secondary)),
                (200, 2, Ends(Secondary)),
                (300, 3, Ends(Secondary)),
            ],
            Some((0, Secondary, 600)),
        ),
        // The cause comes after what it caused.
        (
            &[(100, 0, Ends(Secondary)), (200, 1, Ends(Secondary)), (500, 2, Ends(KilledProven))],
            Some((2, KilledProven, 600)),
        ),
        (&[(100, 0, Ends(Failed)), (500, 2, Ends(Crashed))], Some((2, Crashed, 600))),
        (&[(100, 0, Closes), (300, 2, Ends(Failed))], Some((2, Failed, 600))),
        (&[(100, 1, Ends(Killed)), (200, 2, Ends(KilledProven))], Some((2, KilledProven, 600))),
        (&[(100, 1, Ends(Failed)), (200, 2, Ends(Killed))], Some((2, Killed, 600))),
        // Of equal evidence the first decides, and then the lowest rank.
        (&[(100, 3, Ends(Failed)), (200, 1, Ends(Failed))], Some((3, Failed, 600))),
        (&[(100, 3, Ends(Failed)), (100, 1, Ends(Failed))], Some((1, Failed, 600))),
        // Too late for the verdict.
        (&[(100, 3, Ends(Failed)), (700, 1, Ends(KilledProven))], Some((3, Failed, 600))),
        // A connection that closes after its rank ended well, or after its own error, is no sign of its own.
        (&[(100, 1, Ends(Finished)), (200, 1, Closes)], None),
        (&[(100, 1, Ends(Interrupted)), (200, 1, Closes)], None),
        (&[(100, 1, Ends(Failed)), (200, 1, Closes)], Some((1, Failed, 600))),
        (
            &[
                (100, 0, Ends(Finished)),
                (100, 1, Ends(Finished)),
                (100, 2, Ends(Finished)),
                (100, 3, Ends(Finished)),
            ],
            None,
        ),
    ] {
        let (found, ms) = play(events);
        let found = found.first().map(|verdict| (verdict.member.rank, verdict.cause, ms));
        let words: Vec<String> = events
            .iter()
            .map(|(at, rank, what)| match what {
                Ends(cause) => format!("{at}: {rank} {cause:?}"),
                Closes => format!("{at}: {rank} closes"),
                Falls => format!("{at}: {rank} falls silent"),
            })
            .collect();
        assert_eq!(found, expect, "{words:?}");
    }
}

#[test]
fn one_sentence_names_the_rank_and_those_that_ended_for_it() {
    let verdict = |events: &[(u64, usize, What)]| play(events).0.remove(0).words();
    assert_eq!(
        verdict(&[(0, 2, What::Ends(Cause::KilledProven))]),
        "rank 2 (host a, pid 102) was killed: KilledProven; 3 other ranks ended for it"
    );
    // Those that finished before did not end for it.
    assert_eq!(
        verdict(&[
            (0, 0, What::Ends(Cause::Finished)),
            (0, 3, What::Ends(Cause::Finished)),
            (100, 2, What::Closes)
        ]),
        "rank 2 (host a, pid 102) was lost: its connection closed, in step 3 of 9, phase update; 1 other rank ended for it"
    );
}

#[test]
fn a_stopped_trainer_is_reported_and_waited_for() {
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(2), WAIT_MAX, start);
    let mut at = |ms: u64, state: char| {
        let now = start + Duration::from_millis(ms);
        ranks.beat(0, working(), now);
        ranks.beat(1, Beat { state, ..working() }, now);
        ranks.look(now)
    };
    assert_eq!([at(0, 'T'), at(900, 'T'), at(1800, 'R'), at(2000, 'T')], [vec![], vec![], vec![], vec![]]);
    let told = at(4100, 'T');
    assert!(
        matches!(&told[..], [News::Stopped(words)] if words.contains("rank 1 (host a, pid 101)") && words.contains("pid 7")),
        "{told:?}"
    );
    assert_eq!(at(4600, 'T'), vec![]);
    assert!(matches!(&at(5000, 'S')[..], [News::Continued(_)]));
    // Not for ever.
    let mut found = Vec::new();
    for ms in (6000..700_000).step_by(500) {
        found.extend(verdicts(at(ms, 'T')));
    }
    assert_eq!(found.iter().map(|it| (it.member.rank, it.cause)).collect::<Vec<_>>(), [(1, Cause::Stopped)]);
}

#[test]
fn a_pause_of_the_hub_itself_makes_nobody_silent() {
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(2), WAIT_MAX, start);
    assert_eq!(ranks.look(start + SECOND), vec![]);
    // Ctrl-Z stops all; what the others say afterwards is not read yet.
    assert_eq!(ranks.look(start + 100 * SECOND), vec![]);
    ranks.beat(1, working(), start + 100 * SECOND);
    assert_eq!(ranks.look(start + 101 * SECOND), vec![]);
}

#[test]
fn one_that_does_not_end_with_the_others_is_named() {
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(3), WAIT_MAX, start);
    let mut found = Vec::new();
    ranks.ended(0, ending(Cause::Finished), start);
    ranks.ended(2, ending(Cause::Interrupted), start);
    assert_eq!(ranks.interrupted(), Some(15));
    for second in 1..700 {
        let now = start + second * SECOND;
        ranks.beat(1, working(), now);
        found.extend(verdicts(ranks.look(now)).into_iter().map(|it| (it.member.rank, it.cause, second)));
    }
    assert_eq!(found, [(1, Cause::Late, 601)]);
    assert!(!ranks.others_are_over());
    ranks.gone(1, "its connection closed");
    assert!(ranks.others_are_over());
}

/// Plays beats twice a second: rank 1 of four computes in phase `update`, the others wait for it from `began` on.
fn wait_for_rank_1(wait_max: Duration, until: u64, slow: Beat) -> Vec<(u64, News)> {
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(4), wait_max, start);
    let mut told = Vec::new();
    for ms in (0..until * 1000).step_by(500) {
        let now = start + Duration::from_millis(ms);
        for rank in 0..4 {
            let waits = Beat { waiting_ms: ms, waited_ms: ms, arrivals: 5, ..working() };
            ranks.beat(rank, if rank == 1 { slow.clone() } else { waits }, now);
        }
        told.extend(ranks.look(now).into_iter().map(|news| (ms / 1000, news)));
    }
    told
}

#[test]
fn one_that_computes_while_the_others_wait_is_named_once_and_ends_the_run_in_the_end() {
    let slow = Beat { phase: "reward".into(), arrivals: 4, worker: "`python3`, pid 9".into(), ..working() };
    let told = wait_for_rank_1(WAIT_MAX, 700, slow.clone());
    let [(30, News::Slow(words)), (600, News::Verdict(verdict))] = &told[..] else { panic!("{told:?}") };
    assert_eq!(
        words,
        "rank 1 (host a, pid 101) is slow: 3 ranks have waited 30 s for its trainer, pid 7, in step 3 of 9, phase update; \
         it waits for its worker `python3`, pid 9"
    );
    assert_eq!((verdict.member.rank, verdict.cause), (1, Cause::Slow));
    assert_eq!(
        verdict.words(),
        "rank 1 (host a, pid 101) is too slow: the others waited 600 s for its trainer, pid 7, in step 3 of 9, phase update; \
         3 other ranks ended for it"
    );
    // Only what another rank needs of it counts.
    let told = wait_for_rank_1(8 * SECOND, 20, Beat { waits_for: "itself".into(), ..slow.clone() });
    let [_, (8, News::Verdict(verdict))] = &told[..] else { panic!("{told:?}") };
    assert!(!verdict.sentence.contains("waits for"), "{verdict:?}");
    // A shorter wait is announced before it ends the run.
    let told = wait_for_rank_1(8 * SECOND, 20, slow.clone());
    assert!(matches!(&told[..], [(4, News::Slow(_)), (8, News::Verdict(_))]), "{told:?}");
    // One that a signal stopped is not slow.
    let told = wait_for_rank_1(8 * SECOND, 20, Beat { state: 'T', ..slow.clone() });
    let [(2, News::Stopped(_)), (8, News::Verdict(verdict))] = &told[..] else { panic!("{told:?}") };
    assert_eq!(verdict.cause, Cause::Stopped);
    // Where all wait, they wait for the one that has come to the fewest barriers.
    let told = wait_for_rank_1(8 * SECOND, 20, Beat { waiting_ms: 1, ..slow });
    let [(4, News::Slow(words)), (8, News::Verdict(verdict))] = &told[..] else { panic!("{told:?}") };
    assert!(words.starts_with("rank 1 ") && words.contains(": 3 ranks have waited 4 s "), "{words}");
    assert_eq!(verdict.member.rank, 1);
}

#[test]
fn a_row_says_what_a_rank_does() {
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(8), WAIT_MAX, start);
    let at_work = Beat { phase: "update".into(), waited_ms: 1500, since_ms: 250, ..working() };
    (1..8).for_each(|rank| ranks.beat(rank, at_work.clone(), start));
    ranks.beat(1, Beat { waiting_ms: 3, ..at_work.clone() }, start);
    ranks.beat(2, Beat { state: 'T', ..at_work.clone() }, start);
    ranks.gone(3, "its connection closed");
    ranks.ended(4, ending(Cause::Finished), start);
    ranks.ended(5, ending(Cause::Interrupted), start);
    ranks.ended(6, ending(Cause::Failed), start);
    let states = |now| ranks.rows(now).into_iter().map(|row| row.state).collect::<Vec<_>>();
    use State::*;
    assert_eq!(states(start), [Starts, Waits, Stopped, Lost, Finished, Interrupted, Ended, Computes]);
    assert_eq!(states(start + 3 * SECOND)[7], Lost, "its supervisor is silent");
    let row = &ranks.rows(start)[7];
    assert_eq!((row.seconds_waited, row.seconds_in_phase, row.trainer), (1.5, 0.25, 7));
}

#[test]
fn a_rank_0_that_hears_nobody_says_that_it_may_be_cut_off() {
    let words = |events: &[(u64, usize, What)]| play(events).0.remove(0).words();
    let cut_off = "no rank is heard any more, so rank 0 may be the one cut off";
    let all = [(100, 1, What::Falls), (100, 2, What::Falls), (100, 3, What::Falls)];
    assert!(words(&all).contains(cut_off), "{}", words(&all));
    assert!(!words(&all[..2]).contains(cut_off), "{}", words(&all[..2]));
}

/// The supervisor of rank 0 was stopped for some seconds, so the others ended for it: the sentence named one of them.
#[test]
fn r_a_pause_of_rank_0_was_told_as_the_end_of_another_rank() {
    for (pause_ms, gives_up, expect) in [
        (3000, vec![2], (0, Cause::Silent, "was stopped, or had no processor, for 3 s")),
        (3000, vec![0, 1, 2, 3], (0, Cause::Silent, "for 3 s, and the others gave it up, in step 3 of 9")),
        // Without a pause of its own it is as told.
        (100, vec![2], (2, Cause::Secondary, "Secondary")),
    ] {
        let start = Instant::now();
        let mut ranks = Ranks::new(&members(4), WAIT_MAX, start);
        (0..4).for_each(|rank| ranks.beat(rank, working(), start));
        assert_eq!(ranks.look(start), []);
        let woken = start + Duration::from_millis(pause_ms);
        gives_up.iter().for_each(|&rank| ranks.ended(rank, ending(Cause::Secondary), woken));
        assert_eq!(ranks.look(woken), []);
        let found = match pause_ms {
            100 => (5..=25)
                .flat_map(|n| {
                    let now = woken + n * SIGNS_TIME / 5;
                    [0, 1, 3].into_iter().for_each(|rank| ranks.beat(rank, working(), now));
                    verdicts(ranks.look(now))
                })
                .collect(),
            _ => verdicts(ranks.look(woken + SIGNS_TIME)),
        };
        let found = found.first().map(|verdict| (verdict.member.rank, verdict.cause, &*verdict.sentence));
        let (rank, cause, said) = found.expect("a verdict");
        assert_eq!((rank, cause), (expect.0, expect.1), "{said}");
        assert!(said.contains(expect.2), "{said}");
    }
    // A real cause of another rank wins, also after a pause.
    let start = Instant::now();
    let mut ranks = Ranks::new(&members(4), WAIT_MAX, start);
    let woken = start + 3 * SECOND;
    ranks.look(start);
    ranks.ended(1, ending(Cause::Secondary), woken);
    ranks.ended(2, ending(Cause::Crashed), woken);
    ranks.look(woken);
    let found = verdicts(ranks.look(woken + SIGNS_TIME));
    assert_eq!(found.first().map(|verdict| (verdict.member.rank, verdict.cause)), Some((2, Cause::Crashed)));
}

/// Messages between hosts are lost and sent again: two seconds of it ended runs on which packets passed.
#[test]
fn r_a_far_rank_was_lost_after_the_silence_of_a_near_one() {
    let start = Instant::now();
    let mut members = members(3);
    members[2].site = 1;
    let mut ranks = Ranks::new(&members, WAIT_MAX, start);
    let mut lost = Vec::new();
    for n in 0..=60 {
        let now = start + n * SIGNS_TIME / 5;
        ranks.beat(1, working(), now);
        lost.extend(
            verdicts(ranks.look(now)).into_iter().map(|verdict| (verdict.member.rank, verdict.cause, n)),
        );
    }
    assert_eq!(lost, [(2, Cause::Silent, 55)], "it is lost after 5 s, and named half a second later");
}
