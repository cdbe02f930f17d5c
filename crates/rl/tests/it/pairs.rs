//! Steps over pairs: the margin grows, and a score of held-out pairs changes nothing.

use crate::rig::{Case, World, case};
use plimsoll_infer::text::Item;
use plimsoll_plan::RoleName;
use plimsoll_rl::methods::PairMethod;

fn items(case: &Case) -> Vec<Item> {
    (0..4).map(|number| case.pair(number)).collect()
}

fn role(method: &str) -> RoleName {
    if method == "dpo" { RoleName::Actor } else { RoleName::Reward(0) }
}

/// Makes four steps over the same pairs. Returns the margin before each.
fn margins(world: &mut World<'_, '_>, items: &[Item]) -> Vec<f64> {
    let (run, row) = (&world.case.run, PairMethod::of(world.case.run.method()));
    (1..=4)
        .map(|step| {
            let report = (row.step)(&mut world.trainer, run, items, step).expect("finite losses");
            assert_eq!(report.sums.pairs, 4.0);
            assert!(report.update.grad_norm.is_finite() && report.learning_rate > 0.0);
            report.sums.mean_margin()
        })
        .collect()
}

#[test]
fn the_chosen_answers_are_preferred_more_with_each_step() {
    for method in ["dpo", "reward_model"] {
        let case = case(method, &[]);
        let items = items(&case);
        case.world(|world| {
            let found = margins(world, &items);
            assert!(found.is_sorted_by(|a, b| a < b), "{method}: {found:?}");
            if method == "dpo" {
                assert_eq!(found[0], 0.0, "the policy is still its reference");
            }
            let row = PairMethod::of(case.run.method());
            let before = world.weights(role(method));
            let score = (row.score)(&mut world.trainer, &case.run, &items).expect("finite scores");
            assert_eq!((score.num_pairs, score.accuracy), (4, 1.0), "{method}");
            assert!(score.margin > found[3], "{method}: {score:?} after {found:?}");
            assert!(world.weights(role(method)) == before, "{method}: a score is no update");
        });
    }
}

#[test]
fn more_pairs_than_a_step_has_are_scored_in_parts() {
    let case = case("dpo", &[]);
    let many: Vec<Item> = (0..11).map(|number| case.pair(number)).collect();
    case.world(|world| {
        margins(world, &items(&case));
        let row = PairMethod::of(case.run.method());
        let mut score =
            |items: &[Item]| (row.score)(&mut world.trainer, &case.run, items).expect("finite scores");
        let whole = score(&many);
        assert_eq!(whole.num_pairs, 11);
        let (a, b) = (score(&many[..4]), score(&many[4..]));
        let mean = (4.0 * a.margin + 7.0 * b.margin) / 11.0;
        assert!((whole.margin - mean).abs() < 1e-6, "{} for {mean}", whole.margin);
        let loss = (4.0 * a.loss + 7.0 * b.loss) / 11.0;
        assert!((whole.loss - loss).abs() < 1e-6, "{} for {loss}", whole.loss);
    });
}

#[test]
fn threads_change_no_bit_of_a_step_over_pairs() {
    for method in ["dpo", "reward_model"] {
        let of = |set: &str| {
            let case = case(method, &[set]);
            let items = items(&case);
            case.world(|world| {
                margins(world, &items);
                world.weights(role(method))
            })
        };
        assert!(of("run.threads=1") == of("run.threads=3"), "{method}");
    }
}
