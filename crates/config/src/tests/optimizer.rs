//! AdamW's numbers, which are f32 where they are used; and Muon's, with what does not go with it.

use super::{GOOD, load_text};
use plimsoll_algo::update::{MuonOptions, MuonRate};

#[test]
fn numbers_that_no_update_can_be_computed_with_are_refused() {
    for (set, words) in [
        ("train.betas=[0.9, 0.99999999999]", "train.betas"),
        // The divisor of an element that never had a gradient is this alone.
        ("train.adam_epsilon=0.0", "above 0"),
        ("train.adam_epsilon=1e-60", "above 0"),
    ] {
        let error = load_text(GOOD, &[set], &[]).map(|_| ()).unwrap_err();
        assert_eq!(error.slug, "bad-value", "{set}");
        assert!(error.to_string().contains(words), "{set}: {error}");
    }
}

#[test]
fn muon_has_the_rates_and_decay_of_adamw_unless_it_has_its_own() {
    let options = |sets: &[&str]| {
        let sets: Vec<&str> = [&["train.optimizer=muon", "train.weight_decay=0.01"], sets].concat();
        load_text(GOOD, &sets, &[]).expect("a good file").run.train.update_options(1, 0).muon
    };
    let default = MuonOptions { lr: 1e-4, weight_decay: 0.01, ..MuonOptions::default() };
    assert_eq!(options(&[]), Some(default));
    assert_eq!(options(&["train.warmup_steps=4"]), Some(MuonOptions { lr: 1e-4 / 4.0, ..default }));
    let own = [
        "train.muon_learning_rate=0.02",
        "train.muon_rate=original",
        "train.muon_momentum=0.9",
        "train.muon_nesterov=false",
        "train.muon_iterations=6",
        "train.muon_coefficients=[2.0, -1.5, 0.5]",
        "train.muon_weight_decay=0.1",
    ];
    let expect = MuonOptions {
        lr: 0.02,
        momentum: 0.9,
        nesterov: false,
        iterations: 6,
        coefficients: [2.0, -1.5, 0.5],
        weight_decay: 0.1,
        rate: MuonRate::Original,
    };
    assert_eq!(options(&own), Some(expect));
    assert_eq!(load_text(GOOD, &[], &[]).unwrap().run.train.update_options(1, 0).muon, None);
}

#[test]
fn what_does_not_go_with_muon_is_refused_by_name() {
    for (sets, slug, words) in [
        (&["train.muon_momentum=0.9"][..], "contradictory-keys", "train.optimizer = \"muon\""),
        (&["train.optimizer=muon", "lora={}"], "contradictory-keys", "[lora]"),
        (&["train.optimizer=muon", "train.optimizer_dtype=int8"], "contradictory-keys", "optimizer_dtype"),
        (&["train.optimizer=muon", "memory.offload=[\"optimizer\"]"], "contradictory-keys", "memory.offload"),
        (&["train.optimizer=muon", "train.muon_momentum=1.0"], "bad-value", "below 1"),
        (&["train.optimizer=muon", "train.muon_iterations=0"], "bad-value", "from 1 to 99"),
        (&["train.optimizer=muon", "train.muon_coefficients=[1.0, 2.0]"], "bad-value", "a list of 3 numbers"),
        (&["train.optimizer=lion"], "bad-value", "muon"),
    ] {
        let error = load_text(GOOD, sets, &[]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(words), "{sets:?}: {error}");
        assert_eq!(error.slug, slug, "{sets:?}: {error}");
    }
}
