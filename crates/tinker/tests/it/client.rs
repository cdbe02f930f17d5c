//! A client that speaks as the published ones do.

use serde_json::{Value, json};

pub struct Client {
    pub address: String,
    pub token: &'static str,
    base: &'static str,
    pub agent: ureq::Agent,
}

impl Client {
    /// Speaks to a server with a tenant's token, about its base model.
    pub fn new(address: &str, token: &'static str, base: &'static str) -> Client {
        Client { address: address.into(), token, base, agent: ureq::Agent::new_with_config(config()) }
    }

    pub fn post(&self, path: &str, kind: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let request = self.agent.post(format!("{}{path}", self.address)).header("X-API-Key", self.token);
        let mut response = request.header("Content-Type", kind).send(body).unwrap();
        (response.status().as_u16(), response.body_mut().with_config().limit(1 << 26).read_to_vec().unwrap())
    }

    pub fn json(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, bytes) = self.post(path, "application/json", body.to_string().as_bytes());
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        let request = self.agent.get(format!("{}{path}", self.address)).header("X-API-Key", self.token);
        let mut response = request.call().unwrap();
        (
            response.status().as_u16(),
            serde_json::from_slice(&response.body_mut().read_to_vec().unwrap()).unwrap(),
        )
    }

    pub fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, value) = self.json(path, body);
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    /// The result of a request that was accepted.
    pub fn result(&self, promise: &Value) -> Vec<u8> {
        let body = json!({ "request_id": promise["request_id"], "allow_metadata_only": true }).to_string();
        loop {
            let (status, bytes) = self.post("retrieve_future", "application/json", body.as_bytes());
            match status {
                200 => return bytes,
                408 => {}
                _ => panic!("{status}: {}", String::from_utf8_lossy(&bytes)),
            }
        }
    }

    pub fn value(&self, promise: &Value) -> Value {
        serde_json::from_slice(&self.result(promise)).unwrap()
    }

    /// Submits a pass, which must be accepted.
    pub fn pass(&self, body: &[u8]) -> Value {
        let (status, bytes) = self.post("forward_backward", "application/x-protobuf", body);
        let value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(status, 200, "{value}");
        value
    }

    pub fn step(&self, model: &str, seq: u64) -> Value {
        self.ok(
            "optim_step",
            &json!({ "model_id": model, "seq_id": seq, "adam_params": { "learning_rate": 0.01 } }),
        )
    }

    pub fn session(&self) -> String {
        let value = self
            .ok("create_session", &json!({ "tags": [], "sdk_version": "0.38.0", "type": "create_session" }));
        value["session_id"].as_str().unwrap().to_string()
    }

    /// Makes the nth model of a session, with the seed 3.
    pub fn model(&self, session: &str, n: u64) -> String {
        self.model_of(session, n, 8)
    }

    /// Makes the nth model of a session with a rank.
    pub fn model_of(&self, session: &str, n: u64, rank: u32) -> String {
        let body = json!({
            "session_id": session, "model_seq_id": n, "base_model": self.base,
            "lora_config": { "rank": rank, "seed": 3, "train_unembed": false, "train_mlp": true, "train_attn": true },
            "optimizer_config": { "type": "adamw" }, "type": "create_model", "of_the_future": 1,
        });
        let value = self.value(&self.ok("create_model", &body));
        value["model_id"].as_str().unwrap_or_else(|| panic!("{value}")).to_string()
    }

    /// Asserts that a request is refused with this status and slug, and a text that has all of these.
    pub fn refused(&self, path: &str, body: &Value, expect: (u16, &str), has: &[&str]) {
        check_refusal(self.json(path, body), expect, has);
    }

    pub fn pass_refused(&self, body: &[u8], slug: &str, has: &[&str]) {
        let (status, bytes) = self.post("forward_backward", "application/x-protobuf", body);
        check_refusal((status, serde_json::from_slice(&bytes).unwrap()), (400, slug), has);
    }
}

fn check_refusal((status, value): (u16, Value), expect: (u16, &str), has: &[&str]) {
    let detail = value["detail"].as_str().unwrap_or_default();
    assert_eq!((status, value["slug"].as_str().unwrap_or_default()), expect, "{value}");
    has.iter().for_each(|part| assert!(detail.contains(part), "{part:?} in {detail}"));
}

fn config() -> ureq::config::Config {
    ureq::Agent::config_builder().http_status_as_error(false).build()
}
