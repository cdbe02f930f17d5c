//! Episodes that agents play over HTTP: the sequences of their conversations, and what an agent may not do.

use crate::client::{Answer, Client, answer};
use crate::rig::{EOS, Options, sampling};
use crate::user;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_serve::episodes::{EpisodeLimits, EpisodeTable, EpisodesSpec, Played, Round};
use plimsoll_serve::guard::Guard;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

const RUN_TOKEN: &str = "the-token-of-the-run";
const LONG: Duration = Duration::from_secs(600);
const FIRST_SAMPLE: u64 = 1000;

const LIMITS: EpisodeLimits =
    EpisodeLimits { turns: 3, branches: 2, prompt_tokens: 32, response_tokens: 48, turn_tokens: 8 };
const SPEC: EpisodesSpec =
    EpisodesSpec { limits: LIMITS, step_timeout: LONG, claim_timeout: LONG, starts_agents: false };

/// A run whose episodes an agent plays.
struct Game {
    client: Client,
    table: Arc<EpisodeTable>,
    played: Receiver<Result<Vec<Played>>>,
}

/// An episode that was taken.
struct Episode<'g> {
    game: &'g Game,
    offer: Value,
}

fn options() -> Options {
    // Without a template a conversation is its messages, one after the other.
    let guard = Guard { token: Some(RUN_TOKEN.into()), hosts: Vec::new() };
    Options { template: None, guard, prompt_tokens: 72, new_tokens: 8, ..Options::default() }
}

impl Game {
    /// A rollout for each number of episodes.
    fn start(spec: EpisodesSpec, counts: &[usize]) -> Game {
        Game::with(options(), spec, counts)
    }

    fn with(options: Options, spec: EpisodesSpec, counts: &[usize]) -> Game {
        let table = Arc::new(EpisodeTable::new(spec, "secret"));
        let round = |(index, &count): (usize, &usize)| Round {
            starts: (0..count).map(|number| json!({ "round": index, "number": number })).collect(),
            first_sample_id: FIRST_SAMPLE,
            sampling: sampling(1.0, 5),
        };
        let rounds = counts.iter().enumerate().map(round).collect();
        let (client, played) = options.play(table.clone(), rounds);
        Game { client, table, played }
    }

    fn post(&self, target: &str, token: &str, body: &str) -> Answer {
        let headers = format!(
            "Host: {}\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\n",
            self.client.at
        );
        self.client.ask(&format!("POST {target}"), &headers, body)
    }

    fn claim(&self, agent: &str) -> Episode<'_> {
        let answer = self.post("/v1/episodes", RUN_TOKEN, &json!({ "agent": agent }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        Episode { game: self, offer: answer.json() }
    }

    fn played(&self) -> Vec<Played> {
        self.played.recv().expect("a rollout").expect("it was played")
    }

    fn fails(&self) -> Error {
        self.played.recv().expect("a rollout").expect_err("it fails")
    }
}

impl Episode<'_> {
    fn id(&self) -> &str {
        self.offer["id"].as_str().expect("an id")
    }

    fn token(&self) -> &str {
        self.offer["token"].as_str().expect("a token")
    }

    /// The path of a route below the episode's own address.
    fn path(&self, route: &str) -> String {
        format!("/episodes/{}{route}", self.id())
    }

    fn ask(&self, body: &Value) -> Answer {
        self.game.post(&self.path("/v1/chat/completions"), self.token(), &body.to_string())
    }

    fn chat(&self, messages: &Value) -> Value {
        let answer = self.ask(&json!({ "messages": messages, "return_token_ids": true, "ignore_eos": true }));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    fn report(&self, body: &str) -> Answer {
        self.game.post(&format!("/v1/episodes/{}/reward", self.id()), self.token(), body)
    }

    fn end(&self, reward: f64) {
        let answer = self.report(&json!({ "reward": reward }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// `status slug` of an answer.
fn words(answer: &Answer) -> String {
    match answer.status {
        200 => "200 ok".into(),
        status => format!("{status} {}", answer.error().0),
    }
}

#[test]
fn a_conversation_that_grows_is_one_sequence_token_for_token() {
    let game = Game::start(SPEC, &[1]);
    let episode = game.claim("one");
    assert_eq!((&episode.offer["round"], &episode.offer["number"]), (&json!(0), &json!(0)));
    let base = format!("http://{}/episodes/{}/v1", game.client.at, episode.id());
    assert_eq!((&episode.offer["base_url"], &episode.offer["model"]), (&json!(base), &json!("tiny")));
    let mut messages = user("2+2=");
    let first = episode.chat(&messages);
    let said = &first["choices"][0]["message"]["content"];
    let list = messages.as_array_mut().expect("a list");
    list.push(json!({ "role": "assistant", "content": said }));
    list.push(json!({ "role": "user", "content": "no" }));
    let second = episode.chat(&messages);
    episode.end(0.25);
    let played = game.played();
    let [one] = played.as_slice() else { panic!("{played:?}") };
    assert_eq!((one.outcome.as_ref().ok(), one.was_limited), (Some(&0.25), false));
    let [sequence] = one.sequences.as_slice() else { panic!("{:?}", one.sequences) };
    let drawn = [&first, &second].map(|answer| ids(&answer["choices"][0]["token_ids"]));
    // Random answers are bytes of all kinds, which as text would not become the same tokens again.
    let whole = [b"2+2=".map(u32::from).to_vec(), drawn[0].clone(), b"no".map(u32::from).to_vec()].concat();
    assert_eq!(ids(&second["prompt_token_ids"]), whole);
    assert_eq!([sequence.prompt.clone(), sequence.ids.clone()].concat(), [whole, drawn[1].clone()].concat());
    let is_drawn: Vec<bool> = sequence.logprobs.iter().map(|logprob| !logprob.is_nan()).collect();
    assert_eq!(is_drawn, [vec![true; 8], vec![false; 2], vec![true; 8]].concat());
    let turns: Vec<_> = sequence.turns.iter().map(|turn| turn.tokens()).collect();
    assert_eq!(turns, [0..8, 10..18]);
    let heard: Vec<&str> = one.said.iter().map(|(heard, _)| heard[0].content.as_str()).collect();
    assert_eq!(heard, ["2+2=", "no"]);
}

/// An agent that speaks Anthropic's protocol, to a model that never ends its thinking.
#[test]
fn a_conversation_of_blocks_is_one_sequence_token_for_token() {
    const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}|{% endfor %}<think>{# </think> #}";
    let game = Game::with(Options { template: Some(TEMPLATE), ..options() }, SPEC, &[1]);
    let episode = game.claim("one");
    let ask = |messages: &Value| {
        let headers = format!(
            "Host: {}\r\nContent-Type: application/json\r\nX-Api-Key: {}\r\n",
            game.client.at,
            episode.token()
        );
        let body = json!({ "max_tokens": 9999, "messages": messages, "ignore_eos": true }).to_string();
        game.client.ask(&format!("POST {}", episode.path("/v1/messages")), &headers, &body)
    };
    let mut messages = user("2+2=");
    let first = ask(&messages);
    assert_eq!(first.status, 200, "{}", first.body);
    let content = &first.json()["content"];
    assert_eq!((&content[0]["type"], content.as_array().map(Vec::len)), (&json!("thinking"), Some(1)));
    let list = messages.as_array_mut().expect("a list");
    list.push(json!({ "role": "assistant", "content": content }));
    list.push(json!({ "role": "user", "content": [{ "type": "text", "text": "no" }] }));
    assert_eq!(ask(&messages).status, 200);
    messages[1]["content"][0]["thinking"] = json!("something else");
    assert_eq!(ask(&messages).status, 200);
    let refused = game.client.post("/v1/messages", &json!({}));
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
    episode.end(0.5);
    let played = game.played();
    let lengths: Vec<usize> = played[0].sequences.iter().map(|sequence| sequence.turns.len()).collect();
    // What the model has not thought is the beginning of another sequence.
    assert_eq!(lengths, [2, 1]);
}

#[test]
fn the_first_response_of_an_episode_draws_as_its_sample_whoever_plays_it() {
    let game = Game::start(SPEC, &[3]);
    let episodes: Vec<Episode<'_>> = (0..3).map(|agent| game.claim(&agent.to_string())).collect();
    // The last one that was taken asks first.
    for episode in episodes.iter().rev() {
        let body = json!({ "messages": user("1+1=") });
        assert_eq!(episode.ask(&body).status, 200);
        episode.end(0.0);
    }
    let prompt: Vec<u32> = b"1+1=".map(u32::from).to_vec();
    for (number, played) in game.played().iter().enumerate() {
        let alone = options().alone(&prompt, FIRST_SAMPLE + number as u64, sampling(1.0, 5));
        let sequence = &played.sequences[0];
        let bits = |logprobs: &[f32]| logprobs.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
        assert_eq!(sequence.ids, alone.ids(0), "episode {number}");
        assert_eq!(bits(&sequence.logprobs), bits(alone.logprobs(0)), "episode {number}");
    }
}

#[test]
fn a_rewritten_conversation_branches_and_a_limit_refuses_one_more() {
    let game = Game::start(SPEC, &[2]);
    let (narrow, wide) = (game.claim("a"), game.claim("b"));
    narrow.chat(&user("2+2="));
    let rewritten = json!([
        { "role": "user", "content": "2+2=" }, { "role": "assistant", "content": "1" },
        { "role": "user", "content": "no" },
    ]);
    narrow.chat(&rewritten);
    let third = narrow.ask(&json!({ "messages": user("another") }));
    assert_eq!(words(&third), "400 agent-limit");
    assert!(
        third.body.contains("3 sequences of an episode, environment.branches_max is 2"),
        "{}",
        third.body
    );
    narrow.end(1.0);
    // Two responses to one prompt are two branches; a fourth response is beyond its turns.
    assert_eq!(words(&wide.ask(&json!({ "messages": user("2+2="), "n": 2 }))), "200 ok");
    let many = wide.ask(&json!({ "messages": user("2+2="), "n": 2 }));
    assert_eq!(words(&many), "400 agent-limit");
    assert!(many.body.contains("4 responses of an episode, environment.turns_max is 3"), "{}", many.body);
    wide.end(0.5);
    let played = game.played();
    assert!(played.iter().all(|played| played.was_limited && played.outcome.is_ok()));
    let shape = |played: &Played| {
        played.sequences.iter().map(|s| (s.prompt.len(), s.responses.clone())).collect::<Vec<_>>()
    };
    assert_eq!(shape(&played[0]), [(4, vec![0]), (7, vec![1])]);
    assert_eq!(shape(&played[1]), [(4, vec![0]), (4, vec![1])]);
    assert_ne!(played[1].sequences[0].ids, played[1].sequences[1].ids);
}

#[test]
fn an_agent_speaks_in_its_own_episode_as_the_run_samples() {
    let game = Game::start(SPEC, &[2]);
    let (one, other) = (game.claim("a"), game.claim("b"));
    let body = json!({ "messages": user("123+456=") }).to_string();
    let (chat, reward) = (one.path("/v1/chat/completions"), format!("/v1/episodes/{}/reward", one.id()));
    let encoded = chat.replace('-', "%2D");
    let by = |token: &str, target: &str, body: &str| words(&game.post(target, token, body));
    let nine = "{\"reward\":9}";
    for (token, target, body) in [
        ("wrongwrongwrongwrong", &*chat, &*body),
        (RUN_TOKEN, &chat, &body),
        (RUN_TOKEN, &reward, nine),
        (RUN_TOKEN, &encoded, &body),
        (one.token(), "/v1/episodes", "{}"),
        (other.token(), &chat, &body),
        (other.token(), &reward, nine),
    ] {
        assert_eq!(by(token, target, body), "401 serve-token-wrong", "{token} {target}");
    }
    assert_eq!(by(RUN_TOKEN, "/v1/chat/completions", &body), "404 serve-unknown-path");
    for unknown in ["1-2", "1-999", "2-0", "01-0", "x", "1", "1-0-0"] {
        let target = format!("/episodes/{unknown}/v1/chat/completions");
        assert_eq!(by(RUN_TOKEN, &target, &body), "404 agent-episode-unknown", "{unknown}");
    }
    let more = |name: &str, value: Value| {
        let mut body = json!({ "messages": user("123+456=") });
        body[name] = value;
        words(&one.ask(&body))
    };
    for (name, value) in
        [("temperature", json!(0.3)), ("top_p", json!(0.5)), ("top_k", json!(3)), ("seed", json!(1))]
    {
        assert_eq!(more(name, value), "400 agent-sampling", "{name}");
    }
    assert_eq!(more("model", json!("gpt-5")), "404 serve-unknown-model");
    assert_eq!(words(&one.ask(&json!({ "messages": user(&"1".repeat(500)) }))), "400 serve-too-long");
    // What the run does anyway may be said, and a longer response than a turn may have is cut.
    assert_eq!(more("temperature", json!(1.0)), "200 ok");
    let long = one.ask(&json!({ "messages": user("7"), "max_tokens": 1000, "ignore_eos": true }));
    assert_eq!(long.json()["usage"]["completion_tokens"], LIMITS.turn_tokens);
    one.end(0.0);
    other.report("{\"error\":\"not played\"}");
    game.played();
}

#[test]
fn a_reward_is_a_finite_number_and_is_given_once() {
    let game = Game::start(SPEC, &[1, 1]);
    let episode = game.claim("a");
    episode.chat(&user("1"));
    for report in [
        "{\"reward\":null}",
        "{\"reward\":NaN}",
        "{\"reward\":1e39}",
        "{\"reward\":\"1\"}",
        "{\"reward\":1,\"error\":\"both\"}",
        "{}",
        "",
    ] {
        assert_eq!(words(&episode.report(report)), "400 agent-reward-invalid", "{report}");
    }
    episode.end(-1.5);
    assert_eq!(game.played()[0].outcome.as_ref().ok(), Some(&-1.5));
    // The next rollout has begun, and knows of its own episodes alone.
    for answer in [episode.report("{\"reward\":2}"), episode.ask(&json!({ "messages": user("1") }))] {
        assert_eq!(words(&answer), "400 agent-episode-over");
        assert!(answer.body.contains("its rollout has ended"), "{}", answer.body);
    }
    let next = game.claim("a");
    assert_eq!((next.id(), &next.offer["round"]), ("2-0", &json!(1)));
    assert_ne!(next.token(), episode.token());
    next.chat(&user("1"));
    next.end(0.0);
    assert_eq!(game.played().len(), 1);
}

#[test]
fn agents_that_give_up_die_or_say_nothing_cost_their_episodes_alone() {
    let game = Game::start(SPEC, &[4]);
    let [gives_up, dies, mute, plays] = ["gives up", "dies", "mute", "plays"].map(|agent| game.claim(agent));
    gives_up.chat(&user("1"));
    gives_up.report("{\"error\":\"the tool is gone\"}");
    dies.chat(&user("1"));
    mute.end(1.0);
    plays.chat(&user("1"));
    game.table.agent_died("dies", &Error::new("agent-failing", "exit code 1"));
    assert_eq!(game.table.num_ended(), 3);
    assert_eq!(words(&dies.ask(&json!({ "messages": user("1") }))), "400 agent-episode-over");
    plays.end(1.0);
    let outcomes = game.played().into_iter().map(|played| played.outcome);
    let words: Vec<String> =
        outcomes.map(|outcome| outcome.map_or_else(|e| e.to_string(), |r| r.to_string())).collect();
    for (found, expect) in words.iter().zip([
        "an agent gave up: the tool is gone",
        "exit code 1",
        "in which the model said nothing",
        "1",
    ]) {
        assert!(found.contains(expect), "{words:?}");
    }
}

#[test]
fn an_agent_that_is_silent_for_too_long_loses_its_episode() {
    let spec = EpisodesSpec { step_timeout: Duration::from_millis(1), ..SPEC };
    let game = Game::start(spec, &[1]);
    game.claim("silent");
    let played = game.played();
    let error = played[0].outcome.as_ref().expect_err("it timed out");
    assert_eq!(error.slug, slugs::TEXT_ENVIRONMENT_TIMEOUT);
    assert!(played[0].sequences.is_empty());
}

#[test]
fn a_rollout_whose_episodes_nobody_takes_fails() {
    let spec = EpisodesSpec { claim_timeout: Duration::from_millis(1), ..SPEC };
    let error = Game::start(spec, &[2]).fails();
    assert!(error.slug == "agent-missing" && error.message.ends_with("and 2 are free"), "{error}");
}

#[test]
fn an_agent_that_waits_for_an_episode_hears_that_the_run_has_ended() {
    let game = Game::start(SPEC, &[1]);
    let episode = game.claim("a");
    let head = format!("Host: {}\r\nAuthorization: Bearer {RUN_TOKEN}\r\n", game.client.at);
    let claim = "Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let waiting = game.client.send(format!("POST /v1/episodes HTTP/1.1\r\n{head}{claim}").as_bytes());
    // A request that came later was answered: the claim waits.
    assert_eq!(game.client.ask("GET /v1/models", &head, "").status, 200);
    episode.end(0.0);
    assert_eq!(answer(waiting).status, 410);
}

#[test]
fn an_answer_that_ended_goes_on_under_the_template_without_being_read_again() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let game = Game::with(Options { template: Some(template), ..options() }, SPEC, &[1]);
    let episode = game.claim("a");
    let mut messages = user("x");
    let first = episode.chat(&messages);
    let list = messages.as_array_mut().expect("a list");
    list.push(first["choices"][0]["message"].clone());
    list.push(json!({ "role": "user", "content": "y" }));
    let second = episode.chat(&messages);
    let [prompt, drawn] = [&first["prompt_token_ids"], &first["choices"][0]["token_ids"]].map(ids);
    let after: Vec<u32> = b"</><user>y</><assistant>".iter().map(|&byte| byte.into()).collect();
    assert_eq!(ids(&second["prompt_token_ids"]), [prompt, drawn, after].concat());
    assert!(!ids(&second["prompt_token_ids"]).contains(&EOS));
    episode.end(1.0);
    assert_eq!(game.played()[0].sequences.len(), 1);
}
