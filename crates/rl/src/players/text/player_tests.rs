//! Episodes of `text:second-try` played by hand: what the engine would draw is what a test says.

use super::super::talk::Talk;
use super::*;
use crate::players::turn::PlayedTurn;
use plimsoll_base::slugs;
use plimsoll_config::{Credit, Environment, Method, Overlong, RunFile, Train};
use plimsoll_files::TokenizerFiles;
use plimsoll_reward::Scored;
use plimsoll_rollout::{Finish, StopCondition, Turn};
use plimsoll_text::Tokenizer;
use plimsoll_textenv::Kind;

const EOS: u32 = 257;

fn text() -> TextModel {
    let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
    TextModel {
        tokenizer: Tokenizer::from_files(&files, 259).expect("bytes need no file").into(),
        template: None,
        system_prompt: None,
        strings: Default::default(),
        eos: Some(EOS),
        ends: Vec::new(),
        rules: Default::default(),
        teacher_prompt: None,
        teacher_text: None,
        album: None,
        form: None,
    }
}

fn run(turns_max: u32, credit: Credit) -> RunSpec {
    run_of(Method::Grpo, turns_max, credit)
}

fn run_of(method: Method, turns_max: u32, credit: Credit) -> RunSpec {
    let mut run = RunFile::of(method, "builtin:nano", Train::new(2, 1e-6));
    let section = r#"{"env": "text:second-try"}"#;
    let section: Environment = serde_json::from_str(section).expect("a section");
    run.environment =
        Some(Environment { turns_max, turn_tokens_max: 16, credit, restarts_max: 1, ..section });
    run.rollout.max_new_tokens = 8;
    RunSpec::new(&run)
}

fn open(run: &RunSpec) -> TextPlayer {
    opened(run, 32)
}

fn opened(run: &RunSpec, prompt_tokens: usize) -> TextPlayer {
    let section = run.environment().expect("the run has one");
    let kind = Kind::parse(&section.env).expect("it is built in");
    TextPlayer::open(run, (section, &kind), &text(), prompt_tokens).expect("it is built in")
}

/// Begins the engine's side of the episodes that `player` has begun.
fn talk<'s>(player: &'s mut TextPlayer, text: &'s TextModel, run: &'s RunSpec, version: u64) -> Talk<'s> {
    let tokens = vec![0; player.episodes.played.len()];
    Talk::new(player, (text, &run.rollout), version, tokens.into_iter()).expect("no stop string")
}

fn turn(reward: f64) -> PlayedTurn {
    let turn = Turn { start: 0, end: 1, finish: Finish::Eos };
    PlayedTurn { turn, response: String::new(), reward, said: Vec::new(), version: 0 }
}

/// The right answer to the sum that an episode began with.
fn answer(item: &Item) -> String {
    let sum = item.text.trim_end_matches('=');
    sum.split('+').map(|number| number.parse::<u32>().expect("a number")).sum::<u32>().to_string()
}

/// Lets an episode draw `said`. Returns the tokens that follow.
fn say(talk: &mut Talk<'_>, slot: usize, said: &str) -> Vec<u32> {
    let ids: Vec<u32> = said.bytes().map(u32::from).chain([EOS]).collect();
    talk.turn_ended(slot, &ids, Finish::Eos);
    let mut tokens = Vec::new();
    let answered = talk.answer(true, &mut tokens).expect("no fault");
    assert_eq!(answered, Some(slot));
    if tokens.is_empty() {
        talk.ended(slot, &ids, Finish::Eos);
    }
    tokens
}

#[test]
fn a_wrong_answer_is_asked_again_and_the_second_one_ends_the_episode() {
    let (text, run) = (text(), run(4, Credit::Episode));
    let mut player = open(&run);
    let starts = player.episodes.starts(0, 2);
    let items = player.begin(&text, &starts, 2).expect("they begin");
    assert_eq!((items.len(), player.episodes.num_played()), (2, 4));
    assert_ne!(items[0].text, items[1].text, "starts differ");
    let mut talk = talk(&mut player, &text, &run, 7);
    let question: Vec<u32> = items[0].text.bytes().map(u32::from).collect();
    assert_eq!(items[0].ids, question);
    // Right at once, right after a second try, wrong twice, and wrong once before it is cut.
    assert!(say(&mut talk, 0, &answer(&items[0])).is_empty());
    assert_eq!(say(&mut talk, 1, "1"), question, "the same sum in its tokens");
    assert!(say(&mut talk, 1, &answer(&items[0])).is_empty());
    assert!(!say(&mut talk, 2, "1").is_empty() && say(&mut talk, 2, "2").is_empty());
    assert!(!say(&mut talk, 3, "1").is_empty());
    talk.ended(3, &[], Finish::Length);
    assert_eq!(player.episodes.returns(), [Some(1.0), Some(1.0), Some(0.0), Some(0.0)]);
    let report = player.episodes.report();
    assert_eq!((report.turns_mean, report.return_mean), (1.5, 0.5));
    assert_eq!(report.by_turn, [(1.0, 0.25), (0.5, 0.5)]);
    assert_eq!((report.tally.episodes, report.tally.truncated), (4, 1));
}

#[test]
fn an_episode_has_no_more_turns_than_it_may() {
    let (text, run) = (text(), run(1, Credit::Episode));
    let mut player = open(&run);
    let starts = player.episodes.starts(5, 1);
    let items = player.begin(&text, &starts, 1).expect("it begins");
    let mut talk = talk(&mut player, &text, &run, 0);
    assert!(say(&mut talk, 0, "wrong").is_empty(), "a second turn would be one too many");
    assert_eq!((player.episodes.report().tally.truncated, player.episodes.returns()), (1, vec![Some(0.0)]));
    // The same start begins the same episode again, in this run and in another.
    let again = open(&run).begin(&text, &starts, 1).expect("it begins");
    assert_eq!(again[0].text, items[0].text);
}

#[test]
fn what_a_fault_ended_has_no_return_and_too_many_end_the_run() {
    let (text, run) = (text(), run(2, Credit::Episode));
    let mut player = open(&run);
    let starts = player.episodes.starts(0, 3);
    let items = player.begin(&text, &starts, 1).expect("they begin");
    let mut talk = talk(&mut player, &text, &run, 0);
    say(&mut talk, 2, &answer(&items[2]));
    let fault = |what: &str| Some(Error::new(slugs::TEXT_ENVIRONMENT_RAISED, what));
    player.episodes.fail(0, fault("first")).expect("one may fail");
    assert_eq!(player.episodes.returns(), [None, Some(0.0), Some(1.0)]);
    let report = player.episodes.report();
    assert_eq!((report.return_mean, report.tally.aborted), (0.5, 1), "means are over the others");
    assert_eq!(report.fault.as_deref(), Some("first"));
    let error = player.episodes.fail(1, fault("second")).expect_err("restarts_max is 1");
    assert!(error.slug == "text-environment-failing" && error.message.contains(": 2 episodes"), "{error}");
    assert!(error.facts[0].ends_with(": first"), "{error}");
    // The next rollout begins without them.
    player.begin(&text, &starts, 1).expect("they begin");
    assert_eq!((player.episodes.report().tally.aborted, player.episodes.report().fault), (0, None));
}

#[test]
fn a_credited_turn_is_paid_for_by_itself_and_scores_of_the_run_count_before_either() {
    for (method, credit, outcome) in [
        (Method::Reinforce, Credit::Episode, 3.5),
        (Method::Reinforce, Credit::Turn, 2.0),
        // What is compared turn by turn is reported whole.
        (Method::Grpo, Credit::Turn, 3.5),
        (Method::Grpo, Credit::Process, 3.5),
    ] {
        let mut player = open(&run_of(method, 3, credit));
        let starts = player.episodes.starts(0, 2);
        player.begin(&text(), &starts, 1).expect("they begin");
        for episode in &mut player.episodes.played {
            episode.turns = vec![turn(1.5), turn(2.0)];
        }
        player.episodes.played[1].scored =
            Some(Scored { total: Some(0.25), parts: vec![Some(0.25)], ..Scored::default() });
        assert_eq!(player.episodes.returns(), [Some(3.5), Some(0.25)]);
        assert_eq!(player.episodes.outcomes(), [Some(outcome), Some(0.25)], "{credit:?}");
        player.episodes.fail(0, None).expect("one may fail");
        let rewards: Vec<_> = player.episodes.turn_rewards().collect();
        assert_eq!(rewards, [None, Some(vec![1.5, 2.0])]);
    }
}

#[test]
fn people_see_each_turn_with_the_tokens_that_it_drew() {
    let (text, run) = (text(), run(2, Credit::Episode));
    let mut player = open(&run);
    let starts = player.episodes.starts(3, 1);
    let items = player.begin(&text, &starts, 1).expect("it begins");
    let mut talk = talk(&mut player, &text, &run, 41);
    let between = say(&mut talk, 0, "9");
    say(&mut talk, 0, &answer(&items[0]));
    let second: Vec<u32> = answer(&items[0]).bytes().map(u32::from).chain([EOS]).collect();
    let ids = [&[57, EOS][..], &between, &second].concat();
    let (end, start) = (2, 2 + between.len() as u32);
    let turns = [
        Turn { start: 0, end, finish: Finish::Eos },
        Turn { start, end: ids.len() as u32, finish: Finish::Eos },
    ];
    let mut samples = Samples::with_turns(1, 32, 2);
    samples.clear();
    samples.push_turns(&ids, &vec![-0.5; ids.len()], &turns);
    let counted: Vec<Turn> = player.episodes.played[0].turns.iter().map(|played| played.turn).collect();
    assert_eq!(counted, turns, "as the engine counts them");
    let kept = player.episodes.kept(2, &samples, 0);
    assert_eq!((kept.step, kept.reward, kept.prompt.as_str()), (2, Some(1.0), items[0].text.as_str()));
    assert_eq!(kept.response, format!("9\n{}", answer(&items[0])));
    let drawn: Vec<u8> = (0..ids.len() as u32).map(|t| (t < end || t >= start).into()).collect();
    assert_eq!((&kept.tokens, &kept.mask), (&ids, &drawn));
    let [first, last] = kept.turns.as_slice() else { panic!("{:?}", kept.turns) };
    assert_eq!((first.tokens, first.logprobs.len(), first.policy_version), ([0, 2], 2, 41));
    assert_eq!((first.said[0].content.as_str(), first.reward), (items[0].text.as_str(), 0.0));
    assert_eq!((last.tokens, last.reward, last.said.len()), ([start, ids.len() as u32], 1.0, 0));
    assert!(kept.branches.is_empty());
}

#[test]
fn a_rollout_that_leaves_no_episode_ends_the_run_with_the_first_cause() {
    let (text, mut run) = (text(), run(2, Credit::Episode));
    run.environment_mut().expect("a section").restarts_max = 2;
    let mut player = open(&run);
    let starts = player.episodes.starts(0, 3);
    player.begin(&text, &starts, 1).expect("they begin");
    let mut samples = Samples::with_turns(1, 32, 2);
    samples.push_turns(&[1], &[-0.5], &[Turn { start: 0, end: 1, finish: Finish::Eos }]);
    // One worker died, with the episodes of all.
    player
        .episodes
        .fail(1, Some(Error::new("text-environment-crashed", "exit code 3")))
        .expect("one may fail");
    player.episodes.fail(0, None).expect("it is lost");
    player.check_left(&samples).expect("one is left");
    player.episodes.fail(2, None).expect("it is lost");
    let error = player.check_left(&samples).expect_err("none is left");
    assert_eq!(error.slug, "text-environment-failing");
    assert_eq!(error.message, "text:second-try: all 3 episodes of one rollout failed");
    assert_eq!(error.facts, ["the first, text-environment-crashed: exit code 3"]);
}

#[test]
fn rewards_that_add_up_to_no_number_are_a_fault_of_their_episode() {
    let (text, run) = (text(), run(3, Credit::Episode));
    let mut player = open(&run);
    let starts = player.episodes.starts(0, 2);
    player.begin(&text, &starts, 1).expect("they begin");
    player.episodes.played[0].turns = vec![turn(3e38), turn(3e38)];
    player.episodes.played[1].turns = vec![turn(3e38), turn(-3e38)];
    player.settle().expect("one may fail");
    assert_eq!(player.episodes.returns(), [None, Some(0.0)]);
    let report = player.episodes.report();
    assert_eq!(report.tally.bad_replies, 1);
    assert!(report.fault.expect("a fault").contains("add up to 6e38, beyond 32 bits"));
}

#[test]
fn a_prompt_beyond_the_plan_is_refused_with_what_helps_or_cut() {
    let (text, mut run) = (text(), run(2, Credit::Episode));
    let begin = |run: &RunSpec| {
        let mut player = opened(run, 4);
        let starts = player.episodes.starts(7, 1);
        player.begin(&text, &starts, 2)
    };
    let error = begin(&run).expect_err("it has 8");
    assert!(
        error.slug == "prompt-too-long" && error.message.contains("episode 7 begins with 8 tokens"),
        "{error}"
    );
    assert!(error.hints.iter().all(|hint| !hint.contains("drop")), "{error}");
    run.data.overlong = Overlong::TruncateLeft;
    assert_eq!(begin(&run).expect("it is cut")[0].ids.len(), 4);
}
