//! `plimsoll watch` over HTTP: what it gives, what it refuses, how it follows a run; and the page in Chromium.

use crate::common::{Folder, check_refused, command, plimsoll, text};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A machine that runs other tests may need this long for what usually takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that ends with the test.
struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    at: String,
    /// The rest of the line after the address.
    query: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer: status, headers in lower case, body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let mut command = command(&[&["watch", "--port", "0"], args].concat());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its address");
        let address = line.trim().strip_prefix("http://").expect("an address").to_string();
        let (at, query) = address.split_once('/').expect("a path");
        let port = at.rsplit_once(':').expect("a port").1;
        Server { child, at: format!("127.0.0.1:{port}"), query: query.to_string() }
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut link = TcpStream::connect(&self.at).expect("it listens");
        link.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        link.write_all(request.as_bytes()).expect("it takes a request");
        link
    }

    /// `line` is method and target; `headers` end with a line break each.
    fn ask(&self, line: &str, headers: &str) -> Answer {
        let mut answer = Vec::new();
        let request = format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        self.send(&request).read_to_end(&mut answer).expect("an answer");
        let answer = text(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_lowercase(), body: body.to_string() }
    }

    fn get(&self, target: &str) -> Answer {
        self.ask(&format!("GET {target}"), &format!("Host: {}\r\n", self.at))
    }

    fn json(&self, target: &str) -> Value {
        let answer = self.get(target);
        assert_eq!(answer.status, 200, "{target}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or_else(|err| panic!("{target}: {err}: {}", answer.body))
    }

    /// Listens to events until one of them is as wanted.
    fn listen(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let reader =
            BufReader::new(self.send(&format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", self.at)));
        for line in reader.lines() {
            let line = line.expect("the stream goes on");
            if let Some(data) = line.strip_prefix("data: ") {
                let run = serde_json::from_str::<Value>(data).expect("JSON")["runs"][0].clone();
                if wanted(&run) {
                    return run;
                }
            }
        }
        panic!("the stream ended")
    }
}

fn step(step: u32) -> String {
    let reward = f64::from(step % 10) / 10.0;
    format!(
        "{{\"event\":\"step\",\"step\":{step},\"steps\":100,\"reward\":{reward},\"planned_bytes\":1000000,\
         \"seconds_since_start\":{step}.5,\"metrics\":{{\"reward\":{reward},\"kl\":null,\"entropy\":0.25,\
         \"completions/mean_length\":4.5,\"time/rollout\":1,\"time/update\":2,\"grad_norm\":1.5,\"learning_rate\":0.1}}}}\n"
    )
}

/// A run directory with `steps` steps, and what is hostile to a page.
fn run(folder: &Folder, name: &str, steps: u32) -> PathBuf {
    let dir = folder.path(name);
    fs::create_dir_all(dir.join("samples")).expect("a folder");
    let mut log = String::from(
        "{\"event\":\"started\",\"what\":\"<img src=x onerror=console.log(1)>\",\"steps\":100}\n\
         {\"event\":\"warning\",\"slug\":\"over-the-line\",\"message\":\"<script>alert(1)</script>\",\"step\":0}\n",
    );
    (1..=steps).for_each(|n| log += &step(n));
    fs::write(dir.join("events.jsonl"), log).expect("a log");
    let sample = json!({
        "step": 1, "prompt": "</script><script>console.log('xss')</script>", "response": "<b onclick=alert(1)>é",
        "reward": 1.0, "logprobs": [-0.5, -2.0], "token_chars": [10, 11], "finish": "eos",
    });
    fs::write(dir.join("samples/step-000001.jsonl"), format!("{sample}\n")).expect("samples");
    dir
}

fn append(dir: &Path, lines: &str) {
    let mut log = OpenOptions::new().append(true).open(dir.join("events.jsonl")).expect("the log");
    log.write_all(lines.as_bytes()).expect("it grows");
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_page_is_strict_about_what_it_loads_and_who_asks() {
    let folder = Folder::new();
    let server = Server::start(&[name(&run(&folder, "a", 3))]);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "x-frame-options: deny",
    ] {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    assert!(!page.head.contains("access-control-allow-origin"));
    for path in ["/app.js", "/uplot.js", "/style.css", "/icon.svg"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        assert_eq!(
            server.ask(&format!("{method} /api/state"), &format!("Host: {}\r\n", server.at)).status,
            405
        );
    }
    for host in ["Host: evil.example\r\n", "Host: 127.0.0.1.evil.example:80\r\n", "Host: \r\n"] {
        assert_eq!(server.ask("GET /api/state", host).status, 421, "{host}");
    }
    assert_eq!(server.ask("GET /api/state", "Host: localhost:1\r\n").status, 200);
    // Two readers of these could see different hosts.
    for (line, host) in [
        ("GET /api/state", "Host: localhost:1, evil.example\r\n"),
        ("GET /api/state", "Host: localhost:1\r\nHost: evil.example\r\n"),
        ("GET http://evil.example/api/state", "Host: localhost:1\r\n"),
        ("GET /api/state", ""),
    ] {
        assert_eq!(server.ask(line, host).status, 400, "{line} {host}");
    }
}

#[test]
fn no_path_leads_out_of_the_run() {
    let folder =
        Folder::with("secret.jsonl", "{\"prompt\":\"secret\",\"response\":\"secret\",\"reward\":1}\n");
    let dir = run(&folder, "a", 3);
    std::os::unix::fs::symlink(folder.path("secret.jsonl"), dir.join("samples/step-000002.jsonl"))
        .expect("a link");
    let server = Server::start(&[name(&dir)]);
    for target in [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/samples/step-000001.jsonl",
        "/api/page?slug=../data",
        "/api/page?slug=..%2F..%2FREADME",
        "/api/detail?run=7",
        "/api/detail?run=18446744073709551615",
    ] {
        assert_eq!(server.get(target).status, 404, "{target}");
    }
    assert_eq!(server.get("/api/detail?run=-1").status, 400);
    for file in ["../../secret.jsonl", "..%2F..%2Fsecret.jsonl", "%2Fetc%2Fpasswd", "step-000002.jsonl"] {
        let found = server.json(&format!("/api/samples?run=0&file={file}"));
        assert_eq!(found["rows"], json!([]), "{file}");
        // Files that are not of the run are skipped.
        let found = server.get(&format!("/api/samples?run=0&from_file={file}&from_offset=0")).body;
        assert!(!found.contains("secret\""), "{file}: {found}");
    }
    assert_eq!(server.json("/api/samples?run=0&words=ONCLICK")["rows"].as_array().expect("rows").len(), 1);
    assert_eq!(server.json("/api/samples?run=0&words=secret")["rows"], json!([]));
    assert!(
        server.json("/api/page?slug=over-the-line")["page"]
            .as_str()
            .expect("a page")
            .starts_with("# over-the-line")
    );
}

#[test]
fn another_address_needs_the_token() {
    let folder = Folder::with("token", "a-token-of-my-own\n");
    let dir = run(&folder, "a", 3);
    let server =
        Server::start(&["--bind", "0.0.0.0", "--token-file", &folder.text_path("token"), name(&dir)]);
    assert_eq!(server.query, "?token=a-token-of-my-own");
    let host = format!("Host: {}\r\n", server.at);
    let ask = |target: &str, headers: &str| server.ask(&format!("GET {target}"), &format!("{host}{headers}"));
    for (target, headers) in [
        ("/", ""),
        ("/?token=a-token-of-my-owN", ""),
        ("/metrics", "Authorization: Bearer a-token\r\n"),
        ("/api/state", "Cookie: plimsoll_token=\r\n"),
        ("/app.js", ""),
    ] {
        let answer = ask(target, headers);
        assert_eq!((answer.status, answer.body.contains("script")), (401, false), "{target}");
    }
    let moved = ask("/?token=a-token-of-my-own", "");
    assert_eq!(moved.status, 303);
    assert!(moved.head.contains("location: /\r\n"), "{}", moved.head);
    assert!(moved.head.contains("set-cookie: plimsoll_token=a-token-of-my-own; httponly; samesite=strict"));
    assert_eq!(ask("/", "Cookie: plimsoll_token=a-token-of-my-own\r\n").status, 200);
    assert_eq!(ask("/metrics", "Authorization: Bearer a-token-of-my-own\r\n").status, 200);
    // One that it makes itself is long, and another each time.
    let of = |server: &Server| server.query.clone();
    let made = [0, 1].map(|_| of(&Server::start(&["--bind", "0.0.0.0", name(&dir)])));
    assert!(made[0].len() == "?token=".len() + 32 && made[0] != made[1], "{made:?}");
}

#[test]
fn a_page_hears_of_steps_of_the_end_and_of_a_run_that_goes_back() {
    let folder = Folder::new();
    let dir = run(&folder, "a", 3);
    let server = Server::start(&[name(&dir)]);
    server.listen(|run| run["step"] == 3 && run["state"] == "stopped");
    let before = server.json("/api/series?run=0");
    assert_eq!(before["last"], json!([1, 2, 3]));
    assert!(before["metrics"].get("kl").is_none(), "a metric that is no number draws nothing");
    append(&dir, &(step(4) + "{\"event\":\"step\",\"step\":5"));
    server.listen(|run| run["step"] == 4);
    let after = server.json(&format!("/api/series?run=0&from=2&epoch={}", before["epoch"]));
    assert_eq!((&after["from"], &after["last"]), (&json!(2), &json!([3, 4])));
    // Taken up from an earlier checkpoint: the log is cut, and grows past where it was.
    let cut: String = [step(1), step(2), "{\"event\":\"resumed\",\"step\":2}\n".into(), step(3)].concat();
    fs::write(dir.join("events.jsonl"), cut + &step(4) + &step(5) + &step(6)).expect("the log");
    server.listen(|run| run["step"] == 6);
    let all = server.json(&format!("/api/series?run=0&from=2&epoch={}", before["epoch"]));
    assert_eq!((&all["from"], &all["last"]), (&json!(0), &json!([1, 2, 3, 4, 5, 6])));
    fs::write(dir.join("crash.json"), "{\"slug\":\"disk-full\",\"message\":\"full\"}").expect("a crash");
    server.listen(|run| run["state"] == "failed");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("# TYPE plimsoll_reward gauge\nplimsoll_reward{run=\"a\"} 0.6\n"), "{metrics}");
    assert!(metrics.contains("plimsoll_run_failed{run=\"a\"} 1\n"), "{metrics}");
    fs::remove_dir_all(&dir).expect("it goes");
    server.listen(|run| run["state"] == "gone");
    run(&folder, "a", 2);
    server.listen(|run| run["state"] == "stopped" && run["step"] == 2);
}

#[test]
fn a_hundred_thousand_steps_are_a_small_answer_and_single_ones_can_be_seen() {
    let folder = Folder::new();
    let dir = run(&folder, "long", 100_000);
    let server = Server::start(&[name(&dir)]);
    server.listen(|run| run["step"] == 100_000 && run["read_bytes"] == run["log_bytes"]);
    let answer = server.get("/api/series?run=0");
    assert!(answer.body.len() < 1 << 20, "{} bytes", answer.body.len());
    let near = server.json("/api/series?run=0&first=70001&last=70100");
    assert_eq!(near["width"], 1);
    let steps: Vec<u32> = (70_001..=70_100).collect();
    assert_eq!(near["last"], json!(steps));
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("its status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
    let peak_kib: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    // The log has 30 MB; the debug build itself maps some 60 MiB of its file.
    assert!(peak_kib < 160 << 10, "{peak_kib} KiB");
}

#[test]
fn what_cannot_be_watched_is_named() {
    let folder = Folder::with("token", "short\n");
    let dir = run(&folder, "a", 1);
    let none = folder.text_path("none");
    check_refused(&["watch", &none], 1, &["error[run-dir-unreadable]", "none"]);
    fs::create_dir_all(folder.path("empty/below")).expect("a folder");
    let words = ["error[run-dir-unreadable]", "no events.jsonl in it, nor in a folder below it (4 deep)"];
    check_refused(&["watch", &folder.text_path("empty")], 1, &words);
    check_refused(
        &["watch", "--token-file", &folder.text_path("token"), name(&dir)],
        2,
        &["error[bad-value]", "5 characters"],
    );
    check_refused(
        &["watch", "--export", "wandb", &none, name(&dir)],
        2,
        &["error[bad-value]", "tensorboard"],
    );
    let server = Server::start(&[name(&dir)]);
    let port = server.at.rsplit_once(':').expect("a port").1;
    check_refused(
        &["watch", "--port", port, name(&dir)],
        1,
        &["error[port-in-use]", "next free port: --port "],
    );
    check_refused(&["watch", "--bind", "192.0.2.1", name(&dir)], 1, &["error[address-refused]", "192.0.2.1"]);
    // Two servers of one run do not disturb each other, nor the run.
    let second = Server::start(&[name(&dir)]);
    // Each reads the run on its own; the second may not have read it all yet.
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.json("/api/state") != second.json("/api/state") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((server.json("/api/state"), second.get("/").status), (second.json("/api/state"), 200));
    assert!(!dir.join("lock").exists());
}

#[test]
fn one_file_holds_everything_and_nothing_that_can_run() {
    let folder = Folder::new();
    let dir = run(&folder, "a", 5);
    let out = folder.path("out.html");
    let done = plimsoll(&["watch", "--static", name(&out), name(&dir)]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let page = fs::read_to_string(&out).expect("the file");
    assert!(page.contains(
        "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-"
    ));
    assert!(!page.contains("<script>console.log('xss')") && !page.contains("<img src=x"));
    let data = page
        .split_once("id=\"data\">")
        .and_then(|(_, rest)| rest.split_once("</script>"))
        .expect("its data")
        .0;
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["runs"][0]["series"]["last"], json!([1, 2, 3, 4, 5]));
    assert_eq!(data["runs"][0]["samples"][0]["response"], "<b onclick=alert(1)>é");
    assert!(data["pages"]["over-the-line"].as_str().expect("its page").starts_with("# over-the-line"));
    let tb = folder.text_path("tb");
    let done = plimsoll(&["watch", "--export", "tensorboard", &tb, name(&dir)]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let events = fs::read(folder.path("tb/a/events.out.tfevents.0.plimsoll")).expect("the event file");
    assert!(events.windows(13).any(|part| part == b"brain.Event:2"));
    check_refused(&["watch", "--export", "tensorboard", &tb, name(&dir)], 1, &["error[export-exists]"]);
}

#[test]
fn a_folder_is_its_runs_with_the_keys_in_which_they_may_differ() {
    let folder = Folder::new();
    for (name, seed) in [("sweep/lr-a/seed-1", 1), ("sweep/lr-a/seed-2", 2)] {
        let dir = run(&folder, name, 3);
        fs::write(dir.join("run.toml"), format!("seed = {seed}\n[track]\ntoken = \"k1x\"\n"))
            .expect("a run file");
    }
    let server = Server::start(&[&folder.text_path("sweep")]);
    server.listen(|run| run["step"] == 3 && run["reward_best"] == f64::from(0.3f32));
    let state = server.json("/api/state");
    let names: Vec<&Value> = state["runs"].as_array().expect("runs").iter().map(|run| &run["name"]).collect();
    assert_eq!((names, &state["left_out"]), (vec![&json!("seed-1"), &json!("seed-2")], &json!(0)));
    // The first of the runs was read; the second comes after it.
    let settings = (0..12_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let settings = server.json("/api/detail?run=1")["settings"].clone();
        (settings != json!([])).then_some(settings)
    });
    let settings = settings.expect("the second run is read");
    assert_eq!(settings, json!([["seed", "2"], ["track.token", "(not shown)"]]));
    let out = folder.path("out.html");
    let done = plimsoll(&["watch", "--static", name(&out), &folder.text_path("sweep")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(fs::read_to_string(&out).expect("the file").contains("\"name\":\"seed-2\""));
}

/// Everything that a person sees, in Chromium: see `watch_page/check.py`.
#[test]
fn the_page_in_a_browser() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/watch_page/check.py");
    let folder = Folder::new();
    let Ok(mut child) = Command::new("python3")
        .args([name(&script), env!("CARGO_BIN_EXE_plimsoll"), &folder.text_path("")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return eprintln!("skipped: the page is tested by a Python script, and there is no python3");
    };
    let mut out = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("UTF-8");
    let done = child.wait_with_output().expect("it ends");
    match done.status.code() {
        Some(0) => {}
        Some(77) => eprintln!("skipped: the page needs a Chromium (apt-get install chromium)"),
        code => panic!("{code:?}\n{out}\n{}", text(&done.stderr)),
    }
}

#[test]
fn the_first_lines_and_the_parts_are_of_one_load_line() {
    let folder = Folder::new();
    let dir = run(&folder, "a", 1);
    let part = json!({ "phase": "update", "planned_bytes": 700, "rss_bytes": 600 });
    let memory = json!({
        "event": "memory", "step": 1, "parts": [part], "workers_bytes": 90, "workers_planned_bytes": 200,
        "supervisor_bytes": 10, "supervisor_planned_bytes": 50,
    });
    append(&dir, &format!("{memory}\n"));
    let plan = json!({ "pools": { "host": { "peak_bytes": 1000 } }, "regions": [] });
    fs::write(dir.join("plan.json"), plan.to_string()).expect("a plan");
    let server = Server::start(&[name(&dir)]);
    let brief = server.listen(|run| run["peak_bytes"].is_u64());
    assert_eq!((&brief["peak_bytes"], &brief["load_line_bytes"]), (&json!(700), &json!(1000)));
    let parts = &server.json("/api/detail?run=0")["parts_of_host"];
    assert_eq!(parts["trainer"], json!({ "planned_bytes": 700, "measured_bytes": 600 }));
    assert_eq!(parts["workers"], json!({ "planned_bytes": 250, "measured_bytes": 100 }));
}

#[test]
fn ranks_are_rows_of_a_run_that_has_them() {
    let folder = Folder::new();
    let dir = run(&folder, "a", 2);
    let server = Server::start(&[name(&dir)]);
    assert_eq!(server.listen(|run| run["step"] == 2)["ranks"], Value::Null);
    let row = |rank: u32, state: &str| json!({ "rank": rank, "state": state, "seconds_waited": 0.5 });
    let board = json!({ "slowest": 1, "ended": null, "rows": [row(0, "waits"), row(1, "computes")] });
    fs::write(dir.join("ranks.json"), board.to_string()).expect("a file");
    let brief = server.listen(|run| run["ranks"].is_object());
    assert_eq!(brief["ranks"], board);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("plimsoll_run_slowest_rank{run=\"a\"} 1\n"), "{metrics}");
    fs::remove_file(dir.join("ranks.json")).expect("it is ours");
    server.listen(|run| run["ranks"].is_null());
}
