//! The short form: some hundred inputs for each parser. The long one is `cargo xtask fuzz`.

use fuzz::session::{Options, run};
use fuzz::target::Target;
use fuzz::targets::TARGETS;

/// One test, because the peak of memory is the process's: the target that may take the least comes first.
#[test]
fn every_parser_reads_its_corpus_and_ends_in_a_value_or_a_named_error() {
    let mut targets: Vec<&Target> = TARGETS.iter().collect();
    targets.sort_by_key(|target| target.bounds.peak_bytes);
    for target in targets {
        reads_something_of_its_corpus(target);
        ends_in_a_value_or_a_named_error(target);
    }
}

/// Changes of what is not read itself would test little.
fn reads_something_of_its_corpus(target: &Target) {
    let mut subject = (target.open)();
    let corpus = subject.corpus().to_vec();
    let errors: Vec<_> = corpus.iter().filter_map(|input| subject.read(input).err()).collect();
    println!("{}: {} of {} refused: {errors:?}", target.name, errors.len(), corpus.len());
    assert!(errors.len() < corpus.len(), "{}: {errors:?}", target.name);
}

fn ends_in_a_value_or_a_named_error(target: &Target) {
    let options = Options { seconds: 60, inputs_max: 300, seed: 7, from: 0, show: false, at: None };
    let outcome = run(target, &options);
    println!("{}: {} accepted of {}, {:?}", target.name, outcome.accepted, outcome.inputs, outcome.refused);
    assert_eq!(outcome.fault, None, "{}", target.name);
    // Some inputs get past the first check.
    assert!(outcome.accepted > 0, "{}: {outcome:?}", target.name);
}
