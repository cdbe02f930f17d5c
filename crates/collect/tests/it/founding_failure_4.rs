//! Founding failure 4: collector workers that need no GPU each open a context on it, until the card is full. Here
//! Python workers import torch and ask it for the card: none has a device, and nothing shows on the card.

use crate::common::{Driver, envs, python};
use plimsoll_collect::Stepper;
use plimsoll_worker::procs::{GPU_DEVICES, gpu_use, of_sessions};
use serde_json::json;
use std::process::Command;

/// Returns what the card holds: bytes in use, and the processes that hold them; none without a card.
fn card() -> Option<(String, String)> {
    let ask = |query: &str| {
        let out = Command::new("nvidia-smi").args([query, "--format=csv,noheader"]).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    };
    Some((ask("--query-gpu=memory.used")?, ask("--query-compute-apps=pid,used_memory")?))
}

#[test]
fn failure_4_python_workers_that_import_torch_hold_no_device() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let before = card();
    let workers = if before.is_some() { 64 } else { 8 };
    let class = json!({ "folder": folder.path() });
    let mut driver = Driver::start(envs(&python, "Torch", class, workers, workers)).unwrap();
    driver.steps(20).unwrap();
    assert_eq!((driver.stepper.workers_alive(), driver.faults.len()), (workers as usize, 0));
    let sessions = driver.stepper.pids();
    let processes = of_sessions(&sessions);
    assert!(processes.len() >= workers as usize);
    for (_, pid) in processes {
        assert_eq!(gpu_use(pid, &GPU_DEVICES).device, None, "process {pid}");
    }
    assert_eq!(card(), before);
    // A mapped driver library is a warning, because it is rarely intended, not a failure.
    let warnings = driver.stepper.take_warnings();
    let stand_in = folder.path().join("libcuda.so.1").exists();
    assert!(
        !stand_in || warnings.iter().any(|warning| warning.slug == "env-worker-maps-cuda"),
        "{warnings:?}"
    );
}
