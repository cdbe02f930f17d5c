//! The short form: some hundred inputs for each parser. The long one is `cargo xtask fuzz`.

use fuzz::session::{Options, run};
use fuzz::targets::TARGETS;

/// Changes of what is not read itself would test little.
#[test]
fn every_target_reads_something_of_its_corpus() {
    for target in &TARGETS {
        let mut subject = (target.open)();
        let corpus = subject.corpus().to_vec();
        let errors: Vec<_> = corpus.iter().filter_map(|input| subject.read(input).err()).collect();
        println!("{}: {} of {} refused: {errors:?}", target.name, errors.len(), corpus.len());
        assert!(errors.len() < corpus.len(), "{}: {errors:?}", target.name);
    }
}

#[test]
fn every_parser_ends_in_a_value_or_a_named_error() {
    let options = Options { seconds: 60, inputs_max: 300, seed: 7, from: 0, show: false, at: None };
    for target in &TARGETS {
        let outcome = run(target, &options);
        println!(
            "{}: {} accepted of {}, {:?}",
            target.name, outcome.accepted, outcome.inputs, outcome.refused
        );
        assert_eq!(outcome.fault, None, "{}", target.name);
        // Some inputs get past the first check.
        assert!(outcome.accepted > 0, "{}: {outcome:?}", target.name);
    }
}
