//! A server that ends and starts again goes on where it was: with every answer that it gave, and the bits of one that
//! never ended.

use crate::rig::{Drawn, SMALL, Server, drawn, learn, sample, sampler, scored, tokens};
use serde_json::{Value, json};
use std::path::Path;

/// Trains two models in turns over servers that end `stops` times, also with requests under way.
fn train(folder: &Path, stops: bool) -> (Vec<Vec<u32>>, Vec<String>, Drawn) {
    let mut server = Server::start(folder, SMALL);
    let session = server.client(0).session();
    let models: Vec<String> = (0..3).map(|n| server.client(0).model(&session, n)).collect();
    let (mut passes, mut norms) = (Vec::new(), Vec::new());
    let mut seq = 1;
    for round in 0..3 {
        let client = server.client(0);
        let asked: Vec<[Value; 3]> = models
            .iter()
            .map(|model| {
                let [a, b] = [seq, seq + 1].map(|seq| learn(&client, model, 0, seq));
                [a, b, client.step(model, seq + 2)]
            })
            .collect();
        if stops {
            if round == 1 {
                // Some are answered before it ends.
                client.result(&asked[0][0]);
            }
            server.stop();
            server = Server::start(folder, SMALL);
        }
        let client = server.client(0);
        for [a, b, step] in &asked {
            passes.extend([a, b].map(|asked| scored(&client.result(asked))));
            norms.push(client.value(step)["metrics"].to_string());
        }
        seq += 3;
    }
    let client = server.client(0);
    let saved = client.ok("save_weights", &json!({ "model_id": models[1], "seq_id": seq, "path": "kept" }));
    let path = client.value(&saved)["path"].clone();
    let id = sampler(&client, &models[1], seq + 1, 0);
    let drew = drawn(&client.result(&sample(&client, &id, 0, &tokens(0, 2, 7), (2, 10))));
    // A model that is made of what was saved goes on as the one that was.
    let load = json!({ "session_id": session, "model_seq_id": 7, "path": path, "optimizer": true });
    let other = client.value(&client.ok("load_weights", &load))["model_id"].as_str().unwrap().to_string();
    let mut both = [(&models[1], seq + 2), (&other, 1)].map(|(model, first)| {
        let text = [tokens(0, 1, 30)];
        let body = |seq: u64| {
            crate::wire::pass(model, seq, "cross_entropy", &[crate::wire::next_tokens(&text[0])], &[])
        };
        let before = scored(&client.result(&client.pass(&body(first))));
        client.value(&client.step(model, first + 1));
        (before, scored(&client.result(&client.pass(&body(first + 2)))))
    });
    assert_eq!(both[0], both[1]);
    passes.push(std::mem::take(&mut both[0].1));
    (passes, norms, drew)
}

#[test]
fn a_server_that_ends_goes_on_with_the_same_bits() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let whole = train(folders[0].path(), false);
    assert!(whole == train(folders[1].path(), true), "the bits of a server that never ended");
    let again = Server::start(folders[1].path(), SMALL);
    assert_eq!(again.client(0).get("training_runs").1["cursor"]["total_count"], 4);
    drop(again);
    // Nothing is left of what no name has: two saved states and a sampler's, and recovery points.
    let stores = std::fs::read_dir(folders[1].path().join("stores")).unwrap().count();
    assert!((2..=8).contains(&stores), "{stores} stores");
}
