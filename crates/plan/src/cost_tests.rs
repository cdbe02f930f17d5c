//! What the cost model says of a small step: every saving costs time, and every place saves some.

use super::*;
use crate::shape::Offload;
use plimsoll_arch::{Cache, Caches};
use plimsoll_train::{OptimizerDType, PackLimits};

fn work() -> Work {
    Work {
        prompts: 8.0,
        group: 4.0,
        carried: 0.0,
        shares_prompts: true,
        prompt_tokens: 46.0,
        response_tokens: 64.0,
        samples: true,
        updates: 1.0,
        epochs: 1.0,
        critic: (0.0, 1.0),
        weighs_merge: false,
        ranks: 1.0,
        hosts: Hosts::one(1),
    }
}

fn training(micro_batch_tokens: usize) -> Training {
    let dtypes = plimsoll_train::StateDTypes {
        weights: DType::Bf16,
        grads: DType::Bf16,
        summing: plimsoll_train::Summing::default(),
        optimizer: OptimizerDType::Bf16,
    };
    let pack = PackLimits { micro_batch_tokens, prompt_tokens: 46, segments: 40, caches: Caches::paged(0) };
    let recompute = Recompute::None;
    let offload = Offload::default();
    Training {
        dtypes,
        pack,
        packing: Default::default(),
        share: plimsoll_train::Share::WHOLE,
        hosts: Hosts::one(1),
        trainers: Hosts::one(1),
        exchange: plimsoll_config::Auto::Auto,
        cut: plimsoll_train::Cut::multiple(1),
        recompute,
        reference: false,
        critic: None,
        critic_adapter: None,
        teacher: None,
        trackers: plimsoll_base::Bytes(0),
        estimator: plimsoll_base::Bytes(0),
        offload,
        prompts: 8,
        sequences: 32,
        response_tokens: 64,
        policy_lag: 0,
        ahead: 0,
        carried: 0,
        holds_samples: false,
        scores_sharply: false,
        chooses_tokens: false,
        corrects: false,
        scripted: false,
        balance_coef: 0.0,
        muon: None,
    }
}

#[test]
fn a_group_that_is_cut_computes_its_prompt_again() {
    let whole = Cut::greedy(&work(), 4096);
    assert_eq!((whole.rows, whole.micro_batches), (8.0 * (46.0 + 4.0 * 63.0), 1.0));
    let cut = Cut::greedy(&work(), 512);
    assert!(cut.micro_batches > 4.0 && cut.rows > whole.rows, "{} {}", cut.rows, cut.micro_batches);
}

#[test]
fn every_saving_of_memory_costs_time() {
    let spec = ModelSpec::preset("smollm2-135m").unwrap();
    let (model, rates) = (Model::new(&spec, DType::Bf16), Rates::built_in("avx512bf16", 2));
    let cost = |training: Training| {
        let cut = Cut::greedy(&work(), training.pack.micro_batch_tokens);
        update(&work(), &model, &training, &cut, &rates)
    };
    let base = cost(training(4096));
    assert!(cost(training(512)) > base);
    let with = |recompute| cost(Training { recompute, ..training(4096) });
    assert!(base < with(Recompute::Cheap) && with(Recompute::Cheap) < with(Recompute::Layer));
    let offload = Offload { optimizer: true, ..Offload::default() };
    assert!(cost(Training { offload, ..training(4096) }) > base);
    let engine = |sequences, blocks| EngineLimits {
        sequences,
        rows: 512,
        samples: 32,
        prompt_tokens: 46,
        new_tokens: 64,
        ahead: false,
        listed: 0,
        own: plimsoll_model::OwnLogits::NONE,
        caches: Caches::paged(blocks),
        drafts: None,
    };
    let seconds = |engine| rollout(&work(), &model, &engine, &rates);
    assert!(seconds(engine(8, 1000)) > seconds(engine(32, 1000)));
    assert_eq!(in_flight(&work(), &engine(32, 1000)), 32.0);
    // Blocks for only a few sequences: the others wait.
    assert!(in_flight(&work(), &engine(32, 40)) < 10.0);
    // States for sequences alone, as agents' are: those of a group lack their prompts'.
    let alone = Work { shares_prompts: false, ..work() };
    let caches = [(Cache::Paged, 1000), (Cache::State, 32)].into_iter().collect();
    let engine = EngineLimits { caches, ..engine(32, 1000) };
    assert_eq!((in_flight(&alone, &engine), in_flight(&work(), &engine)), (32.0, 24.0));
}

#[test]
fn places_for_carried_prompts_save_time() {
    let spec = ModelSpec::preset("smollm2-135m").unwrap();
    let (model, rates) = (Model::new(&spec, DType::Bf16), Rates::built_in("avx512bf16", 2));
    let carrying = Work { carried: 8.0, ..work() };
    let seconds = |work: &Work, sequences| {
        let engine = EngineLimits {
            sequences,
            rows: 512,
            samples: 64,
            prompt_tokens: 46,
            new_tokens: 64,
            ahead: false,
            listed: 0,
            own: plimsoll_model::OwnLogits::NONE,
            caches: Caches::paged(1000),
            drafts: None,
        };
        rollout(work, &model, &engine, &rates)
    };
    assert_eq!(seconds(&work(), 64), seconds(&work(), 32));
    assert_eq!(seconds(&carrying, 32), seconds(&work(), 32));
    assert!(seconds(&carrying, 64) < seconds(&carrying, 32));
}
