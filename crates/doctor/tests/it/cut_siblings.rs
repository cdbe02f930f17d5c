//! Tests what looks like the end of a run and is none: of an epoch, a stage, an evaluation, another run, another rank.

use super::cut_logs::{bar, check, check_after, each};
use plimsoll_doctor::log::{Input, Limits, diagnose};
use std::io::Cursor;

const RUNTIME: &str =
    "{'train_runtime': 812.3, 'train_samples_per_second': 1.2, 'train_loss': 0.31, 'epoch': 3.0}\n";

#[test]
fn r_an_epoch_that_ends_is_no_run_that_ends() {
    let lines = |n: u64| format!("Epoch [{n}/10], Step [50/50], Loss: 0.12\n");
    check([
        (
            "killed in the second epoch",
            lines(1) + "Epoch [2/10], Step [10/50], Loss: 0.11\n" + &lines(2),
            lines(10),
        ),
        (
            "80 lines of the next epoch",
            "Epoch: [0]  [50/50]  eta: 0:00:00  lr: 0.0001  loss: 0.3  time: 0.5\n".to_string()
                + &each(0..=30, |n| {
                    format!("Epoch: [1]  [{n:2}/50]  eta: 0:01:00  lr: 0.0001  loss: 0.3  time: 0.5\n")
                }),
            "Training done\n".into(),
        ),
    ]);
}

#[test]
fn r_a_run_that_is_resumed_is_at_its_end_when_it_counts_to_it_again() {
    let to =
        |from, to| each(from..=to, |n| format!("{}\n{{'loss': 0.{n}, 'epoch': 0.{n}}}\n", bar("", n, n, 20)));
    check([(
        "the counter is put back",
        to(1, 12) + "Resuming from checkpoint-10\n" + &to(10, 19),
        to(20, 20) + RUNTIME,
    )]);
}

#[test]
fn r_a_second_run_in_a_log_unsays_the_end_of_the_first() {
    let all = |epochs: u64, to: u64| each(1..=to, |n| format!("Epoch {n}/{epochs}\n{}\n", bar("", 0, 9, 9)));
    check_after(
        &(bar("", 1, 20, 20) + "\n" + RUNTIME),
        [(
            "a longer run",
            "Resuming training from checkpoint-20\n".to_string() + &bar("", 20, 39, 40),
            bar("", 40, 40, 40) + "\n" + RUNTIME,
        )],
    );
    check_after(
        &(all(3, 3) + "Training complete\n"),
        [(
            "epochs are counted again",
            all(5, 4) + "Epoch 5/5\n" + &bar("", 0, 8, 9),
            bar("", 9, 9, 9) + "\nTraining complete\n",
        )],
    );
}

#[test]
fn r_a_stage_that_ends_is_no_run_that_ends() {
    let stage = |n: u64| format!("=== Stage {n}/3 ===\n{}\n{RUNTIME}", bar("", 0, 9, 9));
    let last = bar("", 9, 9, 9) + "\n" + RUNTIME;
    check([(
        "stages with a total",
        stage(1) + &stage(2) + "=== Stage 3/3 ===\n" + &bar("", 0, 8, 9),
        last.clone(),
    )]);
    check_after(
        &(bar("", 0, 9, 9) + "\n" + RUNTIME),
        [(
            "a stage without steps so far",
            "***** Running training *****\n  Num examples = 100\n".to_string() + &bar("", 0, 8, 9),
            last,
        )],
    );
}

#[test]
fn r_words_of_an_end_that_each_epoch_prints_end_no_run() {
    let epoch = |n: u64| {
        format!(
            "Epoch {n}/4\n{}Training completed\nval_loss: 0.{n}\n",
            each(1..=4, |step| format!("step {step} loss 0.{step}\n"))
        )
    };
    let named = |n: u64| {
        format!(
            "{}Epoch {n} training finished in 3.1 s\nvalidating\n",
            each(1..=4, |step| format!("step {step} loss 0.{step}\n"))
        )
    };
    let done = |n: u64| {
        format!(
            "{}Saving checkpoint {n}\nDone.\n",
            each(1..=4, |step| format!("step {step}/40 loss 0.{step}\n"))
        )
    };
    check([
        (
            "words under an epoch's heading",
            each(1..=3, epoch) + "Epoch 4/4\nstep 1 loss 0.1\n",
            "Training completed\n".into(),
        ),
        ("words that name an epoch", each(1..=4, named), "Training completed\n".into()),
        ("done, of a checkpoint", each(1..=3, done), "step 40/40 loss 0.1\nDone.\n".into()),
    ]);
}

#[test]
fn r_a_bar_of_an_evaluation_ends_no_training() {
    let train = |n: u64| format!("{}\n{{'loss': 0.{n}, 'epoch': 0.{n}}}\n", bar("", n * 10, n * 10, 90));
    check([(
        "an evaluation after the last step seen",
        bar("", 0, 0, 90) + &each(1..=8, |n| train(n) + &bar("", 0, 25, 25) + "\n"),
        train(9) + RUNTIME,
    )]);
}

#[test]
fn r_a_tracker_s_farewell_is_no_end_while_something_counts() {
    let summary = "wandb: Run history:\nwandb:  train/loss ▁▂▃\nwandb: Run summary:\nwandb:  train/loss 0.3\nwandb: 🚀 View run lively-sun-1 at: https://wandb.ai/a/b/runs/c\nwandb: Synced 5 W&B file(s), 0 media file(s)\nwandb: Find logs at: ./wandb/run-1/logs\n";
    check([
        ("a bar is open", bar("", 0, 12, 30) + "\n" + summary, bar("", 29, 30, 30) + "\n" + summary),
        (
            "steps are open",
            each(1..=5, |n| format!("step {n}/9 loss 0.{n}\n")) + summary,
            "step 9/9 loss 0.1\n".to_string() + summary,
        ),
        (
            "epochs are open",
            each(1..=2, |n| format!("Epoch {n}/9\nloss 0.{n}\n")) + summary,
            "Epoch 9/9\nloss 0.1\n".to_string() + summary,
        ),
        (
            "a model is saved, and steps follow",
            each(1..=9, |n| {
                format!("step {n} loss 0.{n}\nstep {n}1 loss 0.{n}\nModel saved to out/step_{n}\n")
            }),
            "Training done\n".into(),
        ),
    ]);
}

#[test]
fn r_a_bar_at_99_percent_is_not_full() {
    let drawn = "\r100%|##########| 499/500 [05:10<00:00,  1.61it/s]";
    let keras = "Epoch 3/3\n 99/100 [============================>.] - ETA: 0s - loss: 0.3";
    check([
        (
            "rounded",
            bar("", 0, 0, 500)
                + "\r 99%|#########9| 497/500 [05:10<00:00,  1.61it/s]\r 99%|#########9| 498/500 [05:10<00:00,  1.61it/s]"
                + drawn,
            bar("", 500, 500, 500) + "\n",
        ),
        (
            "Keras",
            keras.to_string(),
            "\r100/100 [==============================] - 3s 30ms/step - loss: 0.3\n".into(),
        ),
    ]);
}

#[test]
fn r_a_rank_that_is_at_its_end_is_not_all_of_them() {
    let line =
        |rank: u64, epoch: u64, n: u64| format!("[rank{rank}]: Epoch {epoch}/4 step {n}/5 loss 0.{n}\n");
    let both = |epoch: u64| each(1..=5, |n| line(0, epoch, n) + &line(1, epoch, n));
    check([
        (
            "a rank is later",
            each(1..=3, both) + &each(1..=5, |n| line(0, 4, n)),
            each(1..=5, |n| line(1, 4, n)),
        ),
        ("a rank has not begun the last epoch", each(1..=3, both) + &line(0, 4, 5), line(1, 4, 5)),
    ]);
}

#[test]
fn r_a_log_of_another_rank_that_stops_is_no_end() {
    let steps = |to: u64| each(1..=to, |n| format!("step {n}/9 loss 0.{n}\n"));
    let both = |second: u64| {
        let inputs = [("rank0", steps(9)), ("rank1", steps(second))]
            .map(|(name, text)| Input::Stream(name.into(), Box::new(Cursor::new(text.into_bytes()))));
        diagnose(inputs.into(), Limits::default()).expect("memory can be read")
    };
    assert!(both(9).finished);
    let found = both(4);
    assert!(!found.finished && found.unproven[0].contains("rank1"), "{found:?}");
}
