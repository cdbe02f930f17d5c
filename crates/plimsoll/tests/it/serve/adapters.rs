//! Several adapters of one model, which requests choose by name.

use super::client::Server;
use crate::common::{Folder, plimsoll, text};
use crate::run::Run;
use serde_json::{Value, json};

/// Trains two adapters of other ranks and targets, and returns their folders.
fn adapters(folder: &Run) -> [String; 2] {
    let few = ["train.steps=2", "train.learning_rate=0.05", "eval.prompts_max=2", "eval.every=2"];
    folder.summary("a", &[&few[..], &["lora.rank=4"]].concat());
    let narrow = ["lora.rank=2", "lora.targets=[\"q_proj\", \"v_proj\"]", "seed=3"];
    folder.summary("b", &[&few[..], &narrow].concat());
    ["a", "b"].map(|run| folder.text_path(&format!("{run}/checkpoints/latest")))
}

/// Returns ids and log-probabilities of three responses to a prompt of a model, or to none by name.
fn drawn(server: &Server, model: Option<&str>) -> Value {
    let mut body = json!({
        "prompt": "12+34=", "max_tokens": 12, "temperature": 1.5, "seed": 5, "logprobs": 0, "n": 3, "ignore_eos": true,
        "return_token_ids": true,
    });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    model.into_iter().for_each(|model| assert_eq!(answer["model"], model));
    let choices = answer["choices"].as_array().expect("choices").iter();
    choices.map(|of| json!([of["token_ids"], of["logprobs"]["token_logprobs"]])).collect()
}

#[test]
fn requests_choose_among_adapters_and_get_the_bits_of_each_alone() {
    let folder = Run::new(&std::fs::read_to_string("../../runs/first-lora.toml").expect("a recipe"));
    let [a, b] = adapters(&folder);
    let [of_a, of_b] = [&a, &b].map(|one| drawn(&Server::start(&[one, "--max-new-tokens", "16"]), None));
    let model = Server::start(&["builtin:nano", "--max-new-tokens", "16"]);
    let of_model = drawn(&model, None);
    assert!(of_a != of_model && of_b != of_model && of_a != of_b, "the adapters are to differ");
    drop(model);

    let named = [format!("--adapter=one={a}"), format!("--adapter=two={b}")];
    let server =
        Server::start(&["builtin:nano", "--max-new-tokens", "16", "--name", "base", &named[0], &named[1]]);
    let models = server.get("/v1/models").json();
    let names: Vec<&Value> = models["data"].as_array().expect("models").iter().map(|of| &of["id"]).collect();
    assert_eq!(names, ["builtin:nano", "base", "one", "two"]);
    assert_eq!(models["data"][2]["parent"], "builtin:nano");
    // At one time, and again, when prompts of the same tokens have left their keys.
    for _ in 0..2 {
        let served = &server;
        let each: Vec<Value> = std::thread::scope(|scope| {
            let ask = [Some("one"), Some("two"), None, Some("one")]
                .map(|name| scope.spawn(move || drawn(served, name)));
            ask.map(|one| one.join().expect("an answer")).into()
        });
        assert_eq!(each, [&of_a, &of_b, &of_model, &of_a].map(Clone::clone));
    }
    // Alone it would be served on a base of 4 bits.
    let config = folder.read("a/checkpoints/latest/adapter_config.json");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["base_quantization"] = json!("nf4");
    std::fs::write(std::path::Path::new(&a).join("adapter_config.json"), config.to_string()).expect("a file");
    let output = plimsoll(&["serve", "builtin:nano", "--port", "0", &named[0]]);
    let words = text(&output.stderr);
    assert!(words.contains("error[adapter-slots-unsupported]") && words.contains("fewer bits"), "{words}");
    let unknown = server.post("/v1/completions", &json!({ "prompt": "1+1=", "model": "three" }));
    assert!(unknown.status == 404 && unknown.body.contains("base, one, two"), "{}", unknown.body);
}

#[test]
fn adapters_that_cannot_be_side_by_side_are_refused_before_the_port_is_open() {
    let folder = Folder::new();
    let empty = folder.text_path("empty");
    std::fs::create_dir(&empty).expect("a folder");
    for (given, said) in [
        ("one", "error[bad-value]: --adapter \"one\": it is written as NAME=FOLDER"),
        ("=x", "it is written as NAME=FOLDER"),
        ("builtin:nano=x", "another model of this server has that name"),
        (&format!("one={empty}"), "error[model-file-missing]"),
    ] {
        let output = plimsoll(&["serve", "builtin:nano", "--port", "0", "--adapter", given]);
        let words = text(&output.stderr);
        assert!(output.status.code() != Some(0) && words.contains(said), "{words}");
    }
}
