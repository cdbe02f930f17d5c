//! Logs of healthy runs, cut at every line and at every redraw of a bar: none may be a good end before its true end.
//!
//! A log is what comes before its end, and its end. `\r` draws a bar again. What is cut within the end may be a good
//! one.

use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use std::io::Cursor;

fn read(text: &str) -> Diagnosis {
    let input = Input::Stream("a".into(), Box::new(Cursor::new(text.to_string().into_bytes())));
    diagnose(vec![input], Limits::default()).expect("memory can be read")
}

/// Returns the states of a bar as it is drawn, from `from` to `to` of `total`.
pub fn bar(name: &str, from: u64, to: u64, total: u64) -> String {
    (from..=to)
        .map(|done| {
            let percent = done * 100 / total;
            let (drawn, rest) = ("#".repeat(percent as usize / 10), 10 - percent as usize / 10);
            let rest = " ".repeat(rest);
            format!(
                "\r{name}{percent:3}%|{drawn}{rest}| {done}/{total} [00:{done:02}<00:{:02},  1.61it/s]",
                total - done
            )
        })
        .collect()
}

pub fn each(range: std::ops::RangeInclusive<u64>, line: impl Fn(u64) -> String) -> String {
    range.map(line).collect()
}

/// (name, before the end, end)
pub type Log = (&'static str, String, String);

fn transformers() -> Vec<Log> {
    let step = |n: u64| {
        format!(
            "{}\n{{'loss': 0.{n}1, 'grad_norm': 0.3, 'learning_rate': 1e-05, 'epoch': {n}.0}}\n",
            bar("", n * 5 - 4, n * 5, 30)
        )
    };
    let evaluate = |n: u64| {
        format!(
            "\n{}\n{{'eval_loss': 0.{n}2, 'eval_runtime': 3.1, 'eval_samples_per_second': 81.2, 'epoch': {n}.0}}\n",
            bar("", 0, 25, 25)
        )
    };
    let runtime =
        "{'train_runtime': 812.3, 'train_samples_per_second': 1.2, 'train_loss': 0.31, 'epoch': 6.0}\n";
    let last = format!("{}\n{{'loss': 0.01, 'grad_norm': 0.3, 'epoch': 6.0}}\n", bar("", 30, 30, 30));
    let to_last = |n: u64| if n == 6 { bar("", 26, 29, 30) } else { step(n) };
    let grpo = |n: u64| {
        format!(
            "{{'loss': 0.0{n}, 'grad_norm': 0.38, 'reward': 1.{n}, 'reward_std': 0.2, 'kl': 0.0{n}, 'epoch': 0.{n}}}\n{}\n",
            bar("", n, n, 9)
        )
    };
    vec![
        ("Trainer", each(1..=6, to_last), format!("{last}{runtime}")),
        (
            "Trainer with evaluations",
            each(1..=5, |n| step(n) + &evaluate(n)) + &to_last(6),
            format!("{last}{}{runtime}", evaluate(6)),
        ),
        (
            "TRL's GRPO",
            format!("{}\n{}", bar("", 0, 0, 9), each(1..=8, grpo)),
            format!("{}{runtime}", grpo(9)),
        ),
        (
            "Unsloth",
            format!(
                "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1\n   \\\\   /|    Num examples = 240 | Num Epochs = 3 | Total steps = 30\nO^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4\n{}",
                each(1..=6, to_last)
            ),
            format!("{last}{runtime}"),
        ),
        (
            "axolotl",
            format!(
                "[2026-03-01 10:11:12,123] [INFO] [axolotl.train.train:178] [PID:7] Starting trainer...\n{}",
                each(1..=6, to_last)
            ),
            format!(
                "{last}{runtime}[2026-03-01 10:21:12,123] [INFO] [axolotl.train.train:201] [PID:7] Training completed! Saving trained model to ./out.\n"
            ),
        ),
        (
            "ms-swift",
            each(1..=8, |n| {
                format!(
                    "{}\n{{'loss': 0.{n}, 'grad_norm': 1.2, 'epoch': 0.{n}, 'global_step/max_steps': '{n}/9', 'percentage': '{n}1.11%', 'elapsed_time': '{n}s'}}\n",
                    bar("Train: ", n, n, 9)
                )
            }),
            format!(
                "{}\n{{'loss': 0.1, 'epoch': 1.0, 'global_step/max_steps': '9/9', 'percentage': '100.00%'}}\n{runtime}[INFO:swift] End time of running main: 2026-03-01 10:21:12\n",
                bar("Train: ", 9, 9, 9)
            ),
        ),
    ]
}

fn reinforcement() -> Vec<Log> {
    let openrlhf = |episode: u64, n: u64| {
        format!(
            "{}\n{}\n{}\n{}",
            bar("make_experience: ", 0, 4, 4),
            bar("Train epoch [1/2]: ", 0, 8, 8),
            bar("Train epoch [2/2]: ", 0, 8, 8),
            bar(&format!("Episode [{episode}/2]: "), n, n, 5)
        )
    };
    let verl = |n: u64| {
        format!(
            "(TaskRunner pid=7) step:{n} - global_seqlen/min:70 - actor/pg_loss:0.{n} - critic/score/mean:0.2 - training/global_step:{n} - training/epoch:0\n(TaskRunner pid=7) {}\n",
            bar("Training Progress: ", n, n, 8).trim_start()
        )
    };
    let slime = |n: u64| {
        format!(
            "(MegatronTrainRayActor pid=7) [2026-03-01 10:1{n}:12] model.py:410 - step {n}: {{'train/loss': 0.{n}, 'train/grad_norm': 0.3, 'train/step': {n}}}\n(RolloutManager pid=8) [2026-03-01 10:1{n}:40] rollout.py:301 - rollout {n}: {{'rollout/raw_reward': 0.{n}}}\n"
        )
    };
    let areal = |epoch: u64, n: u64| {
        format!(
            "20260301-10:1{n}:12.123 GRPOTrainer INFO: Epoch {epoch}/3 Step {n}/5 Train step {}/15 done.\n20260301-10:1{n}:13.123 StatsLogger INFO: ppo_actor/loss: 0.{n}\n",
            epoch * 5 - 5 + n
        )
    };
    vec![
        (
            "OpenRLHF",
            format!(
                "{}{}{}{}{}",
                bar("Episode [1/2]: ", 0, 0, 5),
                each(1..=5, |n| openrlhf(1, n)),
                bar("\nEpisode [2/2]: ", 0, 0, 5),
                each(1..=4, |n| openrlhf(2, n)),
                openrlhf(2, 5).rsplit_once('\r').expect("a bar").0
            ),
            bar("Episode [2/2]: ", 5, 5, 5) + "\n",
        ),
        (
            "verl",
            format!(
                "(TaskRunner pid=7) {{'trainer': {{'total_epochs': 2, 'total_training_steps': None}}}}\n(TaskRunner pid=7) Total training steps: 8\n(TaskRunner pid=7) {}\n{}",
                bar("Training Progress: ", 0, 0, 8).trim_start(),
                each(1..=7, verl)
            ),
            format!("{}(TaskRunner pid=7) 'Final validation metrics: {{'val/test_score': 0.7}}'\n", verl(8)),
        ),
        ("slime", each(1..=9, slime), "Job 'raysubmit_1a2b3c' succeeded\n".into()),
        (
            "AReaL",
            each(1..=2, |epoch| each(1..=5, |n| areal(epoch, n))) + &each(1..=4, |n| areal(3, n)),
            areal(3, 5)
                + "20260301-10:21:12.123 Launcher INFO: Training completes! Total time elapsed 812.31.\n",
        ),
    ]
}

fn reinforcement_without_epochs() -> Vec<Log> {
    let nemo = |n: u64| {
        format!(
            "========================= Step {n}/9 =========================\n▶ Preparing batch...\n▶ Generating responses for batch of size 64...\n{}\n📊 Training Results:\n  • Loss: 0.0{n}\n  • Avg Reward: 0.{n}\n",
            bar("Processed prompts: ", 0, 8, 8)
        )
    };
    let prime = |n: u64| {
        format!(
            "10:1{n}:12 SUCCESS Step {n} | Time: 12.31s | Loss: 0.0{n} | Entropy: 0.4 | Grad. Norm: 0.3 | LR: 1.00e-06\n"
        )
    };
    let instruct = |n: u64| {
        format!(
            "INFO:__main__:episode: {}, training_step: {n}, loss/policy_avg: 0.{n}, objective/scores: 0.2\n{}\n",
            n * 64,
            bar("", n, n, 9)
        )
    };
    let plimsoll = |n: u64| {
        format!(
            "step {n}/9  reward 0.{n}30  accuracy 0.{n}93  rollout tok/s 61589  update tok/s 24886  memory 104.6 MiB of 121.2 MiB  loss 0.0{n}\n"
        )
    };
    vec![
        (
            "NeMo-RL",
            each(1..=9, nemo),
            "Max number of steps has been reached, stopping training early\n".into(),
        ),
        ("prime-rl", each(1..=9, prime), "10:21:12 SUCCESS RL training finished!\n".into()),
        (
            "open-instruct",
            format!("{}\n{}", bar("", 0, 0, 9), each(1..=8, instruct)),
            instruct(9) + "INFO:__main__:finished training\n",
        ),
        (
            "TorchRL",
            each(1..=9, |n| bar("", n * 10, n * 10, 100)),
            format!("{}\nTraining took 812.31 seconds to finish\n", bar("", 100, 100, 100)),
        ),
        ("Plimsoll", format!("plan: 104.6 MiB of 121.2 MiB\n{}", each(1..=8, plimsoll)), plimsoll(9)),
    ]
}

fn supervised() -> Vec<Log> {
    let lightning = |epoch: u64| {
        format!(
            "{}{}{}\n",
            bar(&format!("Epoch {epoch}: "), 0, 12, 12),
            bar("Validation DataLoader 0: ", 0, 5, 5),
            bar(&format!("Epoch {epoch}: "), 12, 12, 12)
        )
    };
    let deepspeed = |epoch: u64| {
        let line = |n: u64| {
            format!(
                "Epoch: {epoch} | Step: {n} | PPO Epoch: 1 | Actor Loss: 0.{n} | Critic Loss: 0.2 | Unsupervised Loss: 0.0\naverage reward score: 0.{n}\n"
            )
        };
        format!("Beginning of Epoch {epoch}/3, Total Generation Batches 8\n{}", each(1..=8, line))
    };
    let keras = |epoch: u64, to: u64| {
        let draw = |n: u64| {
            let rest = if n == 10 { "3s 30ms/step".to_string() } else { format!("ETA: {}s", 10 - n) };
            format!(
                "\r{n:2}/10 [{}>{}] - {rest} - loss: 0.{n} - accuracy: 0.9",
                "=".repeat(n as usize),
                ".".repeat(10 - n as usize)
            )
        };
        format!("Epoch {epoch}/4\n{}\n", each(1..=to, draw))
    };
    let detr = |epoch: u64| {
        each(0..=4, |n| {
            format!(
                "Epoch: [{epoch}]  [{:2}/20]  eta: 0:00:{:02}  lr: 0.0001  loss: 0.{n}  time: 0.5  data: 0.1\n",
                n * 5 - n / 4,
                10 - n / 4 * 10
            )
        }) + &format!(
            "Epoch: [{epoch}] Total time: 0:00:10 (0.5 s / it)\nTest:  [ 0/10]  eta: 0:00:05  loss: 0.31\nTest:  [ 9/10]  eta: 0:00:00  loss: 0.31\nTest: Total time: 0:00:05\n"
        )
    };
    vec![
        ("Lightning", each(0..=3, lightning), "`Trainer.fit` stopped: `max_epochs=4` reached.\n".into()),
        (
            "DeepSpeed-Chat",
            each(1..=3, deepspeed),
            "[2026-03-01 10:21:12,123] [INFO] [launch.py:351:main] Process 4711 exits successfully.\n".into(),
        ),
        (
            "Keras",
            each(1..=3, |epoch| keras(epoch, 10)) + keras(4, 9).trim_end(),
            format!("\r{}", keras(4, 10).rsplit_once('\r').expect("a bar").1),
        ),
        ("DETR", each(0..=3, detr), "Training time 0:12:31\nTraining finished\n".into()),
    ]
}

fn epochs() -> Vec<Log> {
    let nested =
        |epoch: u64| format!("{}{}", bar("Iteration: ", 0, 20, 20), bar("Epochs: ", epoch, epoch, 4));
    let lines = |epoch: u64| each(1..=5, |n| format!("Epoch [{epoch}/4], Step [{n}0/50], Loss: 0.{n}\n"));
    let iterations = |epoch: u64| each(1..=5, |n| format!("Epoch {epoch} Iter {n}0/50 loss 0.{n}\n"));
    let accelerate = |epoch: u64| {
        format!(
            "03/01/2026 10:11:12 - INFO - __main__ - epoch {epoch}: loss 0.{epoch}\n03/01/2026 10:11:12 - INFO - accelerate.accelerator - Saving current state to out/epoch_{epoch}\nModel saved to out/epoch_{epoch}\n{}",
            bar("", epoch * 10, epoch * 10, 40)
        )
    };
    let tune = |epoch: u64| {
        each(1..=25, |n| {
            format!(
                "\r{epoch}|{}|Loss: 0.8214: {:3}%|##########| {n}/25 [00:{n:02}<00:10,  2.8s/it]",
                epoch * 25 - 25 + n,
                n * 4
            )
        }) + "\n"
    };
    vec![
        (
            "Accelerate",
            bar("", 0, 0, 40) + &each(1..=3, accelerate),
            accelerate(4) + "\n03/01/2026 10:21:12 - INFO - __main__ - ***** Training finished *****\n",
        ),
        (
            "nested bars",
            bar("Epochs: ", 0, 0, 4) + &each(1..=3, nested) + &bar("Iteration: ", 0, 20, 20),
            bar("Epochs: ", 4, 4, 4) + "\n",
        ),
        (
            "epochs and steps on a line",
            each(1..=3, lines) + lines(4).rsplit_once("Epoch").expect("lines").0,
            "Epoch [4/4], Step [50/50], Loss: 0.1\n".into(),
        ),
        ("epochs without a total", each(1..=4, iterations), "Training complete in 3m 12s\n".into()),
        (
            "torchtune",
            format!(
                "INFO:torchtune.utils:Running recipe with resolved config:\nbatch_size: 2\nepochs: 3\n{}",
                each(1..=2, tune)
            ) + tune(3).rsplit_once('\r').expect("a bar").0,
            "\r3|75|Loss: 0.8214: 100%|##########| 25/25 [00:25<00:00,  2.8s/it]\n".into(),
        ),
    ]
}

/// Fails where a cut log is a good end, or the whole one is none.
pub fn check(logs: impl IntoIterator<Item = Log>) {
    check_after("", logs);
}

/// Does so for logs of a run that follows one that ended well.
pub fn check_after(first: &str, logs: impl IntoIterator<Item = Log>) {
    let mut bad = Vec::new();
    for (name, before, end) in logs {
        let cuts = before.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'\n' | b'\r'));
        // A cut before and after the byte that ends a line: a shell flushes both.
        let cuts = cuts.flat_map(|(at, _)| [at, at + 1]).chain([before.len()]);
        let cuts = cuts.filter(|cut| *cut > 1);
        let ended = cuts.filter(|cut| read(&format!("{first}{}", &before[..*cut])).finished);
        for cut in ended.take(3) {
            let begin = before[..cut].char_indices().rev().nth(160).map_or(0, |(at, _)| at);
            bad.push(format!("{name} ends at byte {cut} of {}: …{:?}", before.len(), &before[begin..cut]));
        }
        let whole = read(&format!("{first}{before}{end}"));
        if !whole.finished || whole.slug.is_some() {
            bad.push(format!(
                "{name} has no end: {:?} {:?} {:?}",
                whole.slug, whole.evidence, whole.unproven
            ));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn a_cut_log_of_transformers_is_no_end() {
    check(transformers());
}

#[test]
fn a_cut_log_of_reinforcement_learning_is_no_end() {
    check(reinforcement());
    check(reinforcement_without_epochs());
}

#[test]
fn a_cut_log_of_other_trainers_is_no_end() {
    check(supervised());
    check(epochs());
}
