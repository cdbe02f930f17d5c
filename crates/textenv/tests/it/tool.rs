//! `text:python-tool` with real programs.

use plimsoll_textenv::{Hosts, Job, Kind, Said, Start};

#[test]
fn programs_are_run_and_answers_are_judged() {
    let settings = crate::settings();
    let mut hosts = Hosts::start(&Kind::parse("text:python-tool").unwrap(), &settings).unwrap();
    let mut ask = |job: Job| -> Said {
        hosts.ask(0, job);
        let reply = hosts.take(true).expect("there is a reply to each job");
        reply.outcome.unwrap().expect("its host is alive")
    };
    let question = ask(Job::Reset(Start::train(0, 0))).messages[0].content.clone();
    let sum = question.strip_prefix("What is ").unwrap().split('?').next().unwrap();
    let said = ask(Job::Step(format!("I compute.\n```python\nprint({sum})\n```"), Vec::new()));
    let words = &said.messages[0].content;
    let answer: i64 = words.strip_prefix("Output:\n").and_then(|text| text.parse().ok()).expect("a number");
    let said = ask(Job::Step("```python\nraise ValueError('x')\n```".into(), Vec::new()));
    let words = &said.messages[0].content;
    assert!(words.starts_with("It printed nothing.\nIt did not come to its end: exit code 1"), "{words}");
    assert!(words.contains("ValueError: x") && !said.done);
    assert_eq!(ask(Job::Step(format!("It is {answer}."), Vec::new())), Said::end(1.0));
    assert_eq!(ask(Job::Step(format!("It is {}.", answer + 1), Vec::new())), Said::end(0.0));
}
