//! A collector that continues the episodes of an earlier one fills the batches that the earlier one would have filled.

use plimsoll_collect::{
    Batch, Collector, Extras, GroupOptions, Mode, NativeGroup, OnAbort, Policy, Random, RowLayout, Settings,
    Stepper, Underway,
};
use plimsoll_env::native::CartPole;
use plimsoll_env::{Environment, Slot, flags};

const ENVS: u32 = 5;
const FRAMES: usize = 40;

fn start(underway: Vec<Underway>) -> Collector {
    let spec = CartPole::default().spec();
    let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
    let layout = RowLayout::new(&observation, &action, FRAMES, FRAMES, Extras::default()).unwrap();
    let settings = Settings {
        run_seed: 3,
        mode: Mode::Sync,
        batches_in_flight: 2,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: false,
    };
    let options = GroupOptions { restarts_max: 5, ..GroupOptions::default() };
    let group = |range| NativeGroup::new(range, CartPole::default, options).unwrap();
    let steppers: Vec<Box<dyn Stepper>> = vec![Box::new(group(0..2)), Box::new(group(2..ENVS))];
    let mut policy = || Box::new(Random { run_seed: 3 }) as Box<dyn Policy>;
    Collector::start_from(&settings, layout, steppers, &mut policy, underway).unwrap()
}

/// Returns the contents of the rows, without bytes after the ends of their tables, which are from earlier batches.
fn content(batch: &Batch) -> Vec<Vec<u8>> {
    let layout = &batch.layout;
    let of = |row: &plimsoll_collect::Row| {
        let columns = [&layout.observations, &layout.actions, &layout.rewards, &layout.flags, &layout.steps];
        let columns = columns.into_iter().chain([&layout.episode_indices]);
        let mut all: Vec<u8> = columns.flat_map(|column| row.bytes()[column.clone()].to_vec()).collect();
        for last in row.finals(layout) {
            all.extend_from_slice(last.observation);
            all.extend_from_slice(&last.episode_return.to_ne_bytes());
        }
        all
    };
    batch.rows().iter().map(of).collect()
}

/// Returns what each environment has done since its last reset, from the batches so far.
fn follow(underway: &mut [Underway], batch: &Batch) {
    for (row, underway) in batch.rows().iter().zip(underway) {
        let episodes: &[u32] = row.column(&batch.layout.episode_indices);
        for (t, &episode) in episodes.iter().enumerate().take(row.num_frames) {
            underway.episode = episode;
            underway.actions.extend_from_slice(row.action(&batch.layout, t));
            if row.flags(&batch.layout)[t] & flags::DONE != 0 {
                (underway.episode, underway.actions) = (episode + 1, Vec::new());
            }
        }
    }
}

#[test]
fn episodes_go_on_bit_for_bit() {
    let mut first = start(Vec::new());
    let mut underway = vec![Underway::default(); ENVS as usize];
    for _ in 0..3 {
        let batch = first.next().unwrap().unwrap();
        follow(&mut underway, &batch);
    }
    assert!(underway.iter().any(|underway| !underway.actions.is_empty()));
    let wanted = content(&first.next().unwrap().unwrap());
    let mut second = start(underway.clone());
    assert!(content(&second.next().unwrap().unwrap()) == wanted, "other frames");
    // Other actions lead to another episode, which is an error.
    underway.iter_mut().for_each(|underway| underway.actions = [1i64.to_ne_bytes(); 60].concat());
    let error = start(underway.clone()).next().map(|_| ()).unwrap_err();
    assert_eq!(error.slug, "resume-differs");
    // A learner that comes late, when the threads have stopped already, hears it too.
    let mut late = start(underway);
    for _ in 0..30_000 {
        if late.stop().is_set() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(late.next().map(|_| ()).unwrap_err().slug, "resume-differs");
}
