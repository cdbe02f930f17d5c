//! Founding failure 5 on paper: PPO of a 13B model on eight GPUs, Adam on the host, in a container of 500 GB; the actor
//! is killed while it saves. The roles of that run as rows of one plan: it is refused, the save's row is named, and the
//! changes that fit are those that the report needed.

use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_memory::{Layout, Limit, Limits, Place, Plan, Pool};
use plimsoll_model::ParamTable;
use plimsoll_train::{OptimizerDType, StateDTypes, Summing, optimizer_layout};

/// The container of the report.
const CONTAINER: Bytes = Bytes(500_000_000_000);
/// Ranks on the node; below ZeRO stage 3 each of them copies the weights to the host before one writes them.
const RANKS: u64 = 8;
/// Bytes that the two groups of processes held besides their states: 211.8 and 202.2 GiB measured, less 197.7 of
/// states.
const ACTOR_PROCESSES: Bytes = Bytes(15_100_000_000);
const CRITIC_PROCESSES: Bytes = Bytes(4_900_000_000);

/// How the weights leave the node.
#[derive(Clone, Copy, PartialEq)]
enum Save {
    /// Each rank holds a whole copy, as the report's run did.
    Gathered,
    /// Through one buffer.
    Streamed,
}

fn plan(optimizer: OptimizerDType, grads: DType, save: Save) -> Plan {
    let spec = ModelSpec::preset("baichuan-13b").expect("a preset");
    let table = ParamTable::new(&spec, plimsoll_devices::named("cuda").kind, DType::Bf16);
    let dtypes = StateDTypes { weights: DType::Bf16, grads, summing: Summing::default(), optimizer };
    let mut layout = Layout::new();
    for (role, processes) in [("actor", ACTOR_PROCESSES), ("critic", CRITIC_PROCESSES)] {
        // The GPUs hold the weights of all four roles; the host holds what Adam works on.
        layout.extend(
            optimizer_layout(role, &table, dtypes, Pool::Host, Phase::Update, false, 1)
                .expect("sizes that can be told"),
        );
        layout.outside(&format!("{role}.processes"), "process", Pool::Host, Place::Process, processes);
        for role in [role.to_string(), format!("{role}.frozen")] {
            let weights = format!("{role}.weights");
            let shape = [table.elements];
            let resident = PhaseSet::RESIDENT;
            layout.arena(&weights, "model", Pool::Device, resident, &shape, DType::Bf16).expect("a size");
        }
    }
    let copy = table.elements * DType::Bf16.bytes();
    let (row, bytes) = match save {
        Save::Gathered => ("save.gathered", Bytes(RANKS * copy)),
        Save::Streamed => ("files.staging", Bytes::mib(64)),
    };
    layout.outside(row, "files", Pool::Host, Place::Heap, bytes);
    let host = Some(Limit { bytes: CONTAINER, source: "cgroup v1 memory.limit_in_bytes 465.7 GiB".into() });
    Plan { layout, limits: Limits { host, ..Limits::default() } }
}

#[test]
fn founding_failure_5_is_refused_with_the_row_of_the_save() {
    let plan = plan(OptimizerDType::F32, DType::F32, Save::Gathered);
    assert!(plan.excess(Pool::Host) > Bytes(100_000_000_000));
    let error = plan.refusal().expect_err("it does not fit");
    assert_eq!((error.slug, error.exit as i32), ("host-pool-exceeded", 3));
    let text = error.to_string();
    assert!(
        text.contains("save.gathered 197.7 GiB") && text.contains("500 GB") | text.contains("465.7 GiB"),
        "{text}"
    );
}

#[test]
fn founding_failure_5_fits_once_the_save_is_streamed_or_the_states_are_small() {
    let fits = |optimizer, grads, save| plan(optimizer, grads, save).fits();
    assert!(fits(OptimizerDType::F32, DType::F32, Save::Streamed), "nothing else has to change");
    assert!(
        fits(OptimizerDType::Bf16, DType::Bf16, Save::Gathered),
        "states of 6 bytes leave room for the copies"
    );
    assert!(!fits(OptimizerDType::F32, DType::Bf16, Save::Gathered), "half of the gradients is not enough");
}
