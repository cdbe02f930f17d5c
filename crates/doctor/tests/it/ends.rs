//! How logs of runs that went well end, in the words of many programs; and the same words where a run did not.

use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use std::io::Cursor;

fn read(text: &str) -> Diagnosis {
    let input = Input::Stream("a".into(), Box::new(Cursor::new(text.to_string().into_bytes())));
    diagnose(vec![input], Limits::default()).expect("memory can be read")
}

const STEPS: &str = "step 1 loss 0.9\nstep 2 loss 0.8\nstep 3 loss 0.7\n";

/// Ends of logs, the steps before them left out.
const ENDS: [(&str, &str); 47] = [
    ("robomimic", "Epoch 2000 Memory Usage: 3211 MB\n\nfinished run successfully!\n"),
    ("NeMo-RL", "Max number of steps has been reached, stopping training early\n"),
    ("NeMo-RL, epochs", "Max number of epochs has been reached, stopping training\n"),
    ("a final model", "Saving final model to logs/ppo/final.zip\n"),
    ("a final checkpoint", "[2026-03-01 10:11:12] Final checkpoint saved to out/final\n"),
    (
        "Stable-Baselines3's bar",
        " 100% ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 100,000/100,000  [ 0:01:40 < 0:00:00 , 1,002 it/s ]\n",
    ),
    ("a bar", "100%|##########| 500/500 [05:10<00:00,  1.61it/s]\n"),
    (
        "verl's bar",
        "(TaskRunner pid=7) Training Progress: 100%|##########| 435/435 [4:10:01<00:00, 34.5s/it]\n",
    ),
    ("torchtune", "1|25|Loss: 0.8214: 100%|##########| 25/25 [01:10<00:00,  2.8s/it]\n"),
    (
        "mmengine",
        "2026/03/01 10:11:12 - mmengine - INFO - Epoch(train) [12][9000/9000]  lr: 1.0e-05  eta: 0:00:00  time: 0.41  loss: 0.51\n2026/03/01 10:11:12 - mmengine - INFO - Saving checkpoint at 12 epochs\n2026/03/01 10:15:12 - mmengine - INFO - Epoch(val) [12][500/500]    coco/bbox_mAP: 0.4120\n",
    ),
    (
        "W&B",
        "wandb: Synced lively-sun-1: https://wandb.ai/a/b/runs/c\nwandb: Synced 5 W&B file(s), 0 media file(s)\n",
    ),
    (
        "W&B of today",
        "wandb: 🚀 View run lively-sun-1 at: https://wandb.ai/a/b/runs/c\nwandb: Find logs at: ./wandb/run-1/logs\n",
    ),
    (
        "Transformers",
        "{'train_runtime': 812.3, 'train_samples_per_second': 1.2, 'train_loss': 0.31, 'epoch': 1.0}\n",
    ),
    ("Transformers, double quotes", "{\"train_runtime\": 812.3, \"train_loss\": 0.31}\n"),
    ("axolotl", "[INFO] [axolotl.train] Training Completed!!! Saving pre-trained model to ./outputs/out\n"),
    (
        "RLlib",
        "Trial PPO_CartPole-v1_1 completed after 10 iterations at 2026-03-01. Total running time: 2min\nTotal run time: 123.4 seconds (123.1 seconds for the tuning loop).\n",
    ),
    ("Ray Tune", "Number of trials: 4/4 (4 TERMINATED)\n"),
    ("Ray's job", "Job 'raysubmit_1a' succeeded\n"),
    (
        "rsl_rl",
        "                      Learning iteration 1499/1500                       \n\n                       Computation: 90123 steps/s (collection: 0.3s, learning 0.1s)\n               Value function loss: 0.0112\n                       Mean reward: 21.31\n                   Total timesteps: 147456000\n                    Iteration time: 0.41s\n                        Total time: 812.31s\n                               ETA: 0.0s\n",
    ),
    (
        "rl_games",
        "fps step: 56789 fps step and policy inference: 45678 fps total: 30000 epoch: 1000/1000 frames: 131072000\nMAX EPOCHS NUM!\n",
    ),
    ("Isaac Sim", "[812.1s] Simulation App Shutting Down\n"),
    ("Lightning", "`Trainer.fit` stopped: `max_epochs=10` reached.\n"),
    (
        "Lightning, early",
        "Monitored metric val_loss did not improve in the last 3 records. Best score: 0.312. Signaling Trainer to stop.\n",
    ),
    ("max_steps reached", "INFO: max_steps reached\n"),
    ("accelerate", "03/01/2026 10:11:12 - INFO - __main__ - ***** Training finished *****\n"),
    ("diffusers", "Steps: 100%|##########| 1000/1000 [10:10<00:00,  1.61it/s, lr=1e-5, step_loss=0.01]\n"),
    (
        "DeepSpeed's launcher",
        "[2026-03-01 10:11:12,123] [INFO] [launch.py:351:main] Process 4711 exits successfully.\n",
    ),
    ("Megatron", "[after training is done] datetime: 2026-03-01 10:11:12\n"),
    ("Slurm", "State: COMPLETED (exit code 0)\n"),
    (
        "torchelastic",
        "INFO torch.distributed.elastic.agent.server.api: [default] Local worker group finished (WorkerState.SUCCEEDED). Waiting 300 seconds for other agents to finish\n",
    ),
    (
        "ML-Agents",
        "[INFO] Exported results/ppo/3DBall/3DBall-500000.onnx\n[INFO] Copied results/ppo/3DBall/3DBall-500000.onnx to results/ppo/3DBall.onnx.\n",
    ),
    ("CleanRL", "model saved to runs/CartPole-v1__ppo__1/ppo.cleanrl_model\n"),
    ("LeRobot", "INFO 2026-03-01 10:11:12 ts/train.py:301 End of training\n"),
    ("a counter of epochs", "Epoch [50/50], Loss: 0.0123, Accuracy: 0.98\n"),
    ("a counter of steps", "step 1000 of 1000, loss 0.012\nsaving\n"),
    ("a counter of episodes", "Episode: 500/500, reward: 200.0\n"),
    (
        "Keras",
        "Epoch 10/10\n100/100 [==============================] - 3s 30ms/step - loss: 0.0123 - accuracy: 0.98\n",
    ),
    ("done", "writing the report\nDone.\n"),
    ("done, in capitals", "ALL DONE!\n"),
    (
        "Kubernetes",
        "pod/train-0 condition met\nState:          Terminated\n  Reason:       Completed\n  Exit Code:    0\n",
    ),
    ("RL Zoo", "Saving to logs/rl_zoo3/ppo/Pendulum-v1_1\n"),
    ("Hydra", "[2026-03-01 10:11:12,123][__main__][INFO] - Training finished\n"),
    ("MaxText", "completed step: 99, seconds: 3.2, TFLOP/s/device: 120.1, loss: 2.2\nTraining completed\n"),
    ("fairseq", "2026-03-01 10:11:12 | INFO | fairseq_cli.train | done training in 812.3 seconds\n"),
    (
        "a server",
        "INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\nINFO:     Finished server process [77]\n",
    ),
    ("Tianshou", "Experiment finished: best reward 200.0\n"),
    ("OpenRLHF", "Episode [20/20]: 100%|##########| 64/64 [10:10<00:00,  9.5s/it, reward=0.91]\n"),
];

#[test]
fn ends_of_runs_that_went_well() {
    let bad: Vec<String> = ENDS
        .iter()
        .map(|(name, end)| (name, read(&format!("{STEPS}{end}"))))
        .filter(|(_, found)| !found.finished || found.slug.is_some())
        .map(|(name, found)| format!("{name}: {:?} {} {:?}", found.slug, found.finished, found.evidence))
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn what_the_run_survived_does_not_hide_its_end() {
    for (name, text) in [
        (
            "a tracker's thread",
            "wandb: Script ended.\nException in thread Thread-14:\nTraceback (most recent call last):\n  File \"/opt/lib/python3.6/threading.py\", line 916, in _bootstrap_inner\n    self.run()\n  File \"/opt/lib/python3.6/site-packages/wandb/run_manager.py\", line 101, in run\n    self.push()\nrequests.exceptions.ConnectionError: ('Connection aborted.', OSError(0, 'Error'))\n",
        ),
        (
            "Ray's workers go away",
            "Final validation metrics: {'val/acc': 0.61}\nTraining Progress: 100%|##########| 435/435 [4:10:01<00:00, 34.5s/it]\n(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n",
        ),
        (
            "a peer goes away, as NCCL sees it",
            "{'train_runtime': 812.3, 'train_loss': 0.31}\n[rank3]:[E301 11:00:13.513456789 ProcessGroupNCCL.cpp:552] [Rank 3] Collective WorkNCCL(SeqNum=12, OpType=BROADCAST) raised the following async exception: NCCL error: remote process exited or there was a network error\n",
        ),
        (
            "a node leaves and steps follow",
            "2026-03-01 11:00:04,002 WARNING worker.py:2074 -- The node with node id: 6e1f90aa and address: 10.0.0.9 has been marked dead because the detector has missed too many heartbeats from it.\nstep 4 loss 0.7\nstep 5 loss 0.7\nstep 6 loss 0.6\nTraining complete\n",
        ),
        (
            "an actor is put back into service",
            "(PPO pid=7) 2026-03-01 10:13:40,119 ERROR actor_manager.py:522 -- Ray error, taking actor 3 out of service. The actor died unexpectedly before finishing this task.\n| PPO_Ant-v4_0ab1c_00000 | RUNNING  | 10.0.0.4:88123 |  14 | 403.2 | 54000 | 39.72 |\n| PPO_Ant-v4_0ab1c_00000 | RUNNING  | 10.0.0.4:88123 |  15 | 413.2 | 55000 | 39.72 |\n| PPO_Ant-v4_0ab1c_00000 | TERMINATED | 10.0.0.4:88123 | 15 | 413.2 | 55000 | 39.72 |\n",
        ),
        (
            "a loader's worker is started again",
            "RuntimeError: DataLoader worker (pid 71233) is killed by signal: Killed.\nstep 4 loss 0.7\nstep 5 loss 0.7\nstep 6 loss 0.6\nTraining complete\n",
        ),
        (
            "peers go away",
            "{'train_runtime': 812.3, 'train_loss': 0.31}\n[W socket.cpp:663] [c10d] The client socket has failed to connect\n",
        ),
    ] {
        let found = read(&format!("{STEPS}{text}"));
        assert!(found.finished && found.slug.is_none(), "{name}: {found:?}");
    }
}

#[test]
fn what_is_no_end() {
    for text in [
        "Epoch 3/10, loss 0.3\n",
        "                      Learning iteration 12/1500                       \n",
        "Epoch [50/50], Loss: 0.0123\nTraceback (most recent call last):\n  File \"a.py\", line 3, in save\n    x()\nValueError: y\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nwandb: Synced lively-sun-1: https://wandb.ai/a/b/runs/c\n",
        "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    x()\nKeyError: 'y'\nwandb: Find logs at: ./wandb/run-1/logs\n",
        "the run stops when max_steps reached\n",
        "train-0  | starting; training is done when the loss is small\n",
        "Processed prompts: 100%|##########| 512/512 [00:10<00:00, 51.2it/s]\n",
        "Killed\n",
    ] {
        let found = read(&format!("{STEPS}{text}"));
        assert!(!found.finished, "{text}: {found:?}");
    }
}

/// An exception after which steps follow, in the forms of many programs.
#[test]
fn steps_after_an_exception_show_that_it_was_survived() {
    const RAISED: &str = "Traceback (most recent call last):\n  File \"/app/data.py\", line 3, in clean\n    os.rmdir(path)\nOSError: [Errno 16] Device or resource busy: '.nfs0000'\n";
    let steps: [&dyn Fn(u32) -> String; 16] = [
        &|n| {
            format!(
                "2026/03/01 10:1{n}:12 - mmengine - INFO - Epoch(train) [1][ {n}00/9000]  lr: 1.0e-03  eta: 1:02:03  time: 0.4  loss: 81.{n}\n"
            )
        },
        &|n| format!("Epoch {n}: loss = 0.000\n"),
        &|n| format!("[   {n}0/100] | loss = 0.000\n"),
        &|n| format!("| epoch 001:     {n}2 / 300 loss=8.123, ppl=240.1, wps=3000\n"),
        &|n| format!("|    total_timesteps      | 20{n}8     |\n"),
        &|n| {
            format!(
                "| rollout/           |          |\n|    ep_rew_mean     | 2{n}       |\n| time/              |          |\n|    total_timesteps | 20{n}8     |\n"
            )
        },
        &|n| format!("|    time/total_timesteps | 20{n}8     |\n"),
        &|n| format!("                       Learning iteration {n}/1500                        \n"),
        &|n| format!("                       \x1b[1m Learning iteration {n}/1500 \x1b[0m\n"),
        &|n| {
            format!(
                "| PPO_Ant-v4_0ab1c_00000 | RUNNING  | 10.0.0.4:88123 |  1{n} | 403.2 | 5{n}000 | 39.72 |\n"
            )
        },
        &|n| format!("global_step=30{n}2, episodic_return=[21.]\n"),
        &|n| format!("{{'loss': 0.{n}, 'grad_norm': 0.38, 'epoch': 0.05}}\n"),
        &|n| format!(" 12%|#2        | {n}/50 [05:10<38:02, 51.9s/it]\n"),
        &|n| format!("[rank0]: step {n}, loss 0.5\n"),
        &|n| format!("INFO:root:[3DBall] Step: {n}2000. Time Elapsed: 33.1 s. Mean Reward: 1.2.\n"),
        &|n| format!("========================= Step {n}/100 =========================\n"),
    ];
    for step in steps {
        let after: String = (1..8).map(step).collect();
        let found = read(&format!("{RAISED}{after}"));
        assert_eq!(found.slug, None, "{after}{found:?}");
    }
}
