//! Tests of steps with golden ticks.

use super::*;
use crate::episodes::carried::EpisodeOfStep;
use crate::episodes::episode::Had;
use crate::episodes::table::{Claim, EpisodesSpec};
use crate::episodes::tree::EpisodeLimits;
use crate::gate::SampledResponse;
use crate::owner::Heard;
use crate::protocol::refusal::Reply;
use plimsoll_device::Sampling;
use plimsoll_rollout::Finish;
use serde_json::Value;
use std::time::Duration;

const SAMPLING: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

fn table() -> EpisodeTable {
    let limits =
        EpisodeLimits { turns: 4, branches: 1, prompt_tokens: 8, response_tokens: 40, turn_tokens: 9 };
    let (step_timeout, claim_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
    EpisodeTable::new(EpisodesSpec { limits, step_timeout, claim_timeout, starts_agents: true }, "s")
}

/// Begins a step that trains one of groups of one episode, named 10, 11, ....
fn begin(table: &EpisodeTable, had: &[&[Had]]) {
    let begun = |(at, had): (usize, &&[Had])| EpisodeOfStep {
        sample_id: 10 + at as u64,
        start: Value::Null,
        has_ended: false,
        had: had.to_vec(),
    };
    table.begin_carried(CarriedRound {
        begun: had.iter().enumerate().map(begun).collect(),
        size: 1,
        times: GroupTimes::new(1, vec![false; had.len()]),
        sampling: SAMPLING,
    });
}

/// Takes the next free episode.
fn claim(table: &EpisodeTable) -> String {
    match table.try_claim(None) {
        Claim::Episode { id, .. } => id,
        _ => panic!("one is free"),
    }
}

fn ask(table: &EpisodeTable, id: &str, prompt: &[u32]) -> Reply<Vec<(usize, u64, usize)>> {
    table.take_places(id, prompt, 1, None, &Heard::default())
}

fn drawn(ids: &[u32]) -> SampledResponse {
    SampledResponse {
        ids: ids.to_vec(),
        logprobs: vec![-0.5; ids.len()],
        finish: Finish::Eos,
        text: "said".into(),
    }
}

/// Draws a request at once, which `floor` must let through.
fn draw(table: &EpisodeTable, id: &str, prompt: &[u32], ids: &[u32], floor: u64) {
    let (number, name, _) = ask(table, id, prompt).unwrap_or_else(|_| panic!("{id} asks"))[0];
    assert!(matches!(table.admission(name & 0xff, floor), Admission::Now), "{id}");
    table.draws(name & 0xff, 0);
    table.record(id, number, Some(drawn(ids)));
}

#[test]
fn a_request_waits_until_the_step_is_certain_to_go_on_beyond_it() {
    let table = table();
    begin(&table, &[&[], &[]]);
    let [one, two] = [claim(&table), claim(&table)];
    assert_eq!([one.as_str(), two.as_str()], ["0-10", "0-11"]);
    ask(&table, &one, &[1]).expect("a place");
    // The other may end before it has drawn anything: then the step ends at tick 0.
    assert_eq!(table.floor(), 0);
    assert!(matches!(table.admission(10, 0), Admission::Later));
    ask(&table, &two, &[1]).expect("a place");
    assert_eq!(table.floor(), 1, "both draw a token at least");
    assert!(matches!(table.admission(10, 1), Admission::Now));
    table.draws(10, 0);
    table.draws(11, 0);
    assert_eq!(table.floor(), 1);
    table.draws(10, 5);
    table.draws(11, 3);
    assert_eq!(table.floor(), 3);
    table.record(&one, 0, Some(drawn(&[7, 7, 7, 7, 7])));
    table.record(&two, 0, Some(drawn(&[8, 8, 8])));
    // The first has asked again at tick 5, and the second thinks at tick 3: it may end there.
    ask(&table, &one, &[1, 7, 7, 7, 7, 7, 2]).expect("a place");
    assert_eq!(table.floor(), 3);
    assert!(!table.is_done());
    table.report(&two, Ok(1.0)).expect("open");
    assert!(table.is_done(), "the other asks at tick 5, and the step ends at 3");
    let (played, times) = table.take_carried();
    assert_eq!((times.bound(), times.chosen()), (3, vec![1]));
    assert!(
        played[0].outcome.is_none()
            && played[1].outcome.as_ref().is_some_and(|of| *of.as_ref().unwrap() == 1.0)
    );
    assert_eq!(played[0].sequence.as_ref().expect("a turn").ids, [7, 7, 7, 7, 7]);
    assert_eq!(played[0].said.len(), 2, "also what it has asked since");
    // Held until the next step, in which its ticks begin again.
    assert!(matches!(table.admission(10, table.floor()), Admission::Later));
    begin(&table, &[&[]]);
    assert_eq!(table.floor(), 1);
    assert!(matches!(table.admission(10, 1), Admission::Now));
    assert!(matches!(table.admission(11, 1), Admission::Never(_)), "it was trained");
}

#[test]
fn an_agent_that_begins_again_gets_the_answers_that_it_had() {
    let had = |prompt: &[u32], ids: &[u32]| Had { prompt: prompt.to_vec(), drawn: drawn(ids) };
    let both = [had(&[1], &[7, 7]), had(&[1, 7, 7, 2], &[8])];
    let table = table();
    begin(&table, &[&both, &both, &both, &[]]);
    let ids: Vec<String> = (0..4).map(|_| claim(&table)).collect();
    for (number, of) in both.iter().enumerate() {
        assert_eq!(ask(&table, &ids[0], &of.prompt).expect("a place")[0].0, number);
        let Admission::Drawn(again) = table.admission(10, 0) else { panic!("it was answered") };
        assert_eq!(again.ids, of.drawn.ids);
        table.record(&ids[0], number, Some(again));
    }
    draw(&table, &ids[0], &[1, 7, 7, 2, 8, 3], &[9], 1);
    // What it had is no tick of this step.
    table.report(&ids[0], Ok(0.5)).expect("open");
    let message = |slot: usize| {
        let played = table.lock().carried.episodes[slot].progress(8);
        played.outcome.expect("it has ended").expect_err("with a fault").message
    };
    // One asks something else, one reports too early.
    assert!(ask(&table, &ids[1], &[1, 2]).is_err());
    assert!(
        message(1).contains("its request 1 has 2 tokens and had 1, the first 1 of them the same"),
        "{}",
        message(1)
    );
    table.report(&ids[2], Ok(0.5)).expect("open");
    assert!(message(2).contains("it reports 2 responses earlier"), "{}", message(2));
    draw(&table, &ids[3], &[1], &[5, 5], 1);
    ask(&table, &ids[3], &[1, 5, 5, 1]).expect("a place");
    assert!(table.is_done());
    assert_eq!(table.take_carried().1.bound(), 0, "those that failed had drawn nothing");
}

#[test]
fn an_episode_asks_one_at_a_time_and_one_that_gave_up_asks_again_as_the_same_response() {
    let table = table();
    begin(&table, &[&[]]);
    let id = claim(&table);
    assert!(table.take_places(&id, &[1], 2, None, &Heard::default()).is_err());
    let first = ask(&table, &id, &[1]).expect("a place")[0];
    assert!(ask(&table, &id, &[1]).is_err(), "the first is under way");
    table.record(&id, first.0, None);
    assert_eq!(ask(&table, &id, &[1]).expect("a place")[0], first);
}

#[test]
fn agents_that_are_too_few_are_named() {
    let table = table();
    begin(&table, &[&[], &[]]);
    let id = claim(&table);
    let later = Instant::now() + Duration::from_secs(5);
    ask(&table, &id, &[1]).expect("a place");
    table.look(Instant::now()).expect("not yet");
    let error = table.look(later).expect_err("nothing can go on").to_string();
    assert!(error.contains("agent-missing") && error.contains("1 episodes wait for 1"), "{error}");
    claim(&table);
    table.look(Instant::now()).expect("somebody plays it");
}
