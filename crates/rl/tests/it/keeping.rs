//! Checkpoints: a restored run continues bit for bit like an uninterrupted one; weights that are not finite are named.

use crate::rig::{World, case};
use plimsoll_base::slugs;
use plimsoll_plan::RoleName;
use plimsoll_rl::diverged::prove;
use plimsoll_rl::save::prepare;
use plimsoll_run::checkpoint::{Retention, RunState, Store};
use plimsoll_run::lead::{Savers, Saving};
use plimsoll_run::progress::Progress;
use std::path::{Path, PathBuf};

fn save(world: &World<'_, '_>, folder: &Path, step: u32, is_resumable: bool) -> PathBuf {
    let state = RunState::blank(Progress::default());
    let saving = Saving {
        step,
        store: Store::of_run(folder),
        retention: Retention { keep: 2, ..Retention::default() },
        everything: is_resumable.then_some((&state, "method = \"grpo\"\n")),
        savers: Savers::All,
    };
    std::fs::create_dir_all(folder.join("checkpoints")).expect("a folder");
    let job = prepare(&world.trainer, &world.case.model, &*world.supply, saving).expect("room on the disk");
    job.run().expect("room on the disk")
}

#[test]
fn a_run_goes_on_from_a_checkpoint_with_the_bits_of_one_that_was_not_interrupted() {
    for (method, sets) in [
        ("grpo", &[][..]),
        ("ppo", &["train.mini_batch=8"]),
        ("grpo", &["lora.rank=4"]),
        ("grpo", &["train.optimizer_dtype=int8"]),
    ] {
        let (case, folder) = (case(method, sets), tempfile::tempdir().expect("a folder"));
        let (path, cursor, updates, expect) = case.world(|world| {
            world.step(1).expect("finite losses");
            let path = save(world, folder.path(), 1, true);
            let updates = [RoleName::Actor, RoleName::Critic]
                .map(|role| world.trainer.role(role).map_or(0, |role| role.updates()));
            let cursor = world.cursor;
            world.step(2).expect("finite losses");
            (path, cursor, updates, world.weights(RoleName::Actor))
        });
        let again = case.world(|world| {
            world
                .trainer
                .restore(&path, |role| updates[usize::from(role == RoleName::Critic)], 0)
                .expect("it is whole");
            world.cursor = cursor;
            world.step(2).expect("finite losses");
            world.weights(RoleName::Actor)
        });
        assert!(again == expect, "{method} {sets:?}");
    }
}

#[test]
fn the_last_checkpoint_has_weights_and_nothing_to_go_on_from() {
    let (case, folder) = (case("ppo", &[]), tempfile::tempdir().expect("a folder"));
    case.world(|world| {
        let path = save(world, folder.path(), 4, false);
        let has = |name: &str| path.join(name).exists();
        assert!(has("model.safetensors") && has("config.json") && has("manifest.json"));
        assert!(!has("state"), "a critic and its states are for resuming");
    });
}

#[test]
fn damaged_tensors_are_not_read() {
    let (case, folder) = (case("grpo", &[]), tempfile::tempdir().expect("a folder"));
    case.world(|world| {
        world.step(1).expect("finite losses");
        let path = save(world, folder.path(), 1, true);
        let weights = path.join("model.safetensors");
        let bytes = std::fs::read(&weights).expect("a file");
        std::fs::write(&weights, &bytes[..bytes.len() / 2]).expect("a file");
        assert!(world.trainer.restore(&path, |_| 1, 1).is_err());
        std::fs::remove_file(&weights).expect("a file");
        assert!(world.trainer.restore(&path, |_| 1, 1).is_err());
    });
}

#[test]
fn a_weight_that_is_no_number_is_named_and_the_first_ones_are_read_again() {
    let case = case("ppo", &[]);
    case.world(|world| {
        prove(&mut world.trainer).expect("the first weights are finite");
        let before = world.weights(RoleName::Actor);
        let name = world.trainer.with_gathered(RoleName::Actor, |dev, table, all| {
            let param = &table.params[3];
            dev.write_f32(all, param.offset as usize, &[f32::NAN]);
            param.parts[0].name.clone()
        });
        let error = prove(&mut world.trainer).expect_err("one is not");
        assert!(
            error.slug == slugs::MODEL_WEIGHT_NOT_FINITE && error.message.contains(&name),
            "{name}: {error}"
        );
        world.trainer.reload(&case.model).expect("it is built in");
        prove(&mut world.trainer).expect("they are read again");
        assert!(world.weights(RoleName::Actor) == before);
        world.trainer.with_gathered(RoleName::Critic, |dev, _, all| dev.write_f32(all, 0, &[f32::INFINITY]));
        let error = prove(&mut world.trainer).expect_err("the critic's are not");
        assert!(error.message.contains("the critic's weights"), "{error}");
    });
}
