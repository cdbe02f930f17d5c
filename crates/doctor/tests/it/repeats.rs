//! Logs that repeat themselves, and logs that a terminal, a runtime or a launcher wrote in its own way.

use plimsoll_doctor::log::self_test::examples;
use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use serde_json::json;
use std::io::Cursor;

fn read(text: &str) -> Diagnosis {
    let input = Input::Stream("a".into(), Box::new(Cursor::new(text.to_string().into_bytes())));
    diagnose(vec![input], Limits::default()).expect("memory can be read")
}

fn step(number: u64) -> String {
    format!("{{'loss': 0.{number}, 'grad_norm': 0.3, 'epoch': 0.1}}\n")
}

fn raised(number: u64) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/app/a.py\", line 3, in f\n    g()\nValueError: sample {number} is too long\n"
    )
}

/// Shows that what was survived a thousand times and then was not is still seen, and the line is the last one.
#[test]
fn the_last_of_many_that_were_survived_is_found() {
    let survived: String =
        (0..1000).map(|n| format!("{}{}{}{}", raised(n), step(n), step(n), step(n))).collect();
    assert_eq!(read(&survived).slug, None);
    let found = read(&format!("{survived}{}", raised(7)));
    assert_eq!(found.slug.as_deref(), Some("value-refused"));
    assert_eq!(found.evidence[0].line, 1000 * 7 + 4);
    // A death of another kind, after them.
    let found =
        read(&format!("{survived}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"));
    assert_eq!(found.slug.as_deref(), Some("cuda-oom"));
    let ray = "(raylet) Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n";
    let survived: String = (0..100).map(|n| format!("{ray}{}", step(n).repeat(12))).collect();
    assert_eq!(read(&survived).slug, None);
    assert_eq!(read(&format!("{survived}{ray}")).slug.as_deref(), Some("worker-sigkill-unknown"));
}

/// The same answer with what launchers and runtimes put around each line.
#[test]
fn examples_in_every_dress_have_one_answer() {
    type Dress = fn(&str) -> String;
    let dresses: [(&str, Dress); 8] = [
        ("a rank", |line| format!("[rank0]: {line}\n")),
        ("srun", |line| format!("3: {line}\n")),
        ("Windows", |line| format!("{line}\r\n")),
        ("colours", |line| format!("\x1b[36m(A pid=77)\x1b[0m {line}\n")),
        ("CRI", |line| format!("2026-03-01T10:11:12.123456789Z stderr F {line}\n")),
        ("Docker", |line| {
            format!(
                "{}\n",
                json!({"log": format!("{line}\n"), "stream": "stderr", "time": "2026-03-01T10:11:12.123456789Z"})
            )
        }),
        ("a cloud", |line| {
            format!(
                "{}\n",
                json!({"timestamp": "2026-03-01T10:11:12Z", "severity": "ERROR", "message": line})
            )
        }),
        ("a logger", |line| format!("{}\n", json!({"level": "error", "ts": 17.5, "msg": line}))),
    ];
    let mut wrong = Vec::new();
    let mut count = 0;
    for example in examples().filter(|example| example.is_positive()) {
        for (name, dress) in dresses {
            let text: String = example.text.trim_end().split('\n').map(dress).collect();
            count += 1;
            let slug = read(&text).slug;
            if slug.as_deref() != Some(example.expected) {
                wrong.push(format!("{name}: {} | {}: {slug:?}", example.expected, example.name));
            }
        }
    }
    // Objects lose the columns of tables and of frames in boxes.
    assert!(wrong.len() * 200 <= count, "{} of {count}\n{}", wrong.len(), wrong.join("\n"));
}

/// A terminal broke a message at its width: the numbers are those of the whole message.
#[test]
fn numbers_of_messages_that_were_broken_over_lines() {
    let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.59 GiB is free. Including non-PyTorch memory, this process has 77.50 GiB memory in use. Of the allocated memory 74.90 GiB is allocated by PyTorch, and 1.78 GiB is reserved by PyTorch but unallocated.";
    for width in [40, 60, 80, 97, 120] {
        let chars: Vec<char> = message.chars().collect();
        let hard: String =
            chars.chunks(width).map(|part| format!("{}\n", part.iter().collect::<String>())).collect();
        let mut soft = String::new();
        let mut column = 0;
        for word in message.split(' ') {
            if column + word.len() > width {
                soft.push('\n');
                column = 0;
            } else if !soft.is_empty() {
                soft.push(' ');
            }
            soft.push_str(word);
            column += word.len() + 1;
        }
        for (how, text) in [("hard", hard), ("soft", soft)] {
            let found = read(&text);
            assert_eq!(found.slug.as_deref(), Some("cuda-oom"), "{how} {width}: {found:?}");
            let words = found.reasons.first().cloned().unwrap_or_default();
            for number in ["free 1.59 GiB", "reserved but unallocated 1.78 GiB", "capacity 79.15 GiB"] {
                assert!(words.contains(number), "{how} {width}: {:?}", found.reasons);
            }
        }
    }
}
