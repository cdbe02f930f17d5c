//! Judges "No space left on device": shared memory or a disk, by the path and not the words.

use crate::log::event::{Moment, Verdict};
use crate::log::signatures::Mark;
use crate::log::state::FileState;
use crate::log::text::regex;
use regex::Regex;
use std::sync::LazyLock;

/// A place that was written to: its class, its name in a line or a frame, and the conclusion.
struct Place(&'static str, Regex, &'static str);

/// In the line, then in the frames, in this order. A word in a path proves nothing: a frame must write.
static PLACES: LazyLock<[Place; 11]> = LazyLock::new(|| {
    let place = |slug, pattern: &str, words| Place(slug, regex(pattern), words);
    [
        place("shm-full-nccl", r"/dev/shm/nccl-|NCCL (WARN|ERROR)", "NCCL was making a segment in /dev/shm"),
        place(
            "shm-full-ray",
            r"/dev/shm/(plasma|ray)|plasma_store|PlasmaStore|plasma/",
            "it was Ray's object store in /dev/shm",
        ),
        place(
            "shm-full-torch",
            r"/dev/shm|</?torch_\d|_multiprocessing\.SemLock|multiprocessing/synchronize\.py|ctx\.(R?Lock|(Bounded)?Semaphore|Condition|Event)\(|multiprocessing/shared_memory\.py|/psm_|_share_f(d|ilename)\w*\(|multiprocessing/reductions\.py|multiprocessing/heap\.py",
            "the frames make shared memory, which is in /dev/shm",
        ),
        place(
            "disk-full",
            r"(?i)object_spill|\bspill(ed\b|ing\b|_| objects)|external_storage\.py|ray_spilled_objects",
            "it was Ray's spill folder, on a disk",
        ),
        place(
            "disk-full",
            r"torch/serialization\.py|torch\.save\(|PytorchStreamWriter|save_pretrained|save_checkpoint|safetensors[/.]\w*save|serialize_file|Error while serializing",
            "a checkpoint was being saved",
        ),
        place("disk-full", r"/overlay|overlay2|overlayfs", "it was the container's own disk"),
        place(
            "disk-full",
            r#"(?i)device: ?['"]?/|write (failed|error)[^\n]{0,80}/|/(tmp|var|home|root|mnt|data|workspace|scratch|ckpt|checkpoints?|outputs?|opt|usr|nfs|lustre|local|cache|raid|ssd|nvme)\b[^\n]*No space"#,
            "the path is that of a disk",
        ),
        place(
            "disk-full",
            r"tensorboard/[^\n]*(write|flush)|event_file_writer",
            "a TensorBoard file was being written",
        ),
        place(
            "disk-full",
            r#"File "[^"\n]*wandb/[^"\n]*", line \d+, in \w*(write|flush|save|publish|sync)"#,
            "a file of W&B was being written",
        ),
        place("disk-full", r"logging/__init__\.py|loguru/", "a log file was being written"),
        place("disk-full", r"\.write\(|shutil\.|copyfile|json\.dump|\.flush\(", "a file was being written"),
    ]
});

/// The source of a message, as in `/opt/lib/store.py:46: UserWarning:`, where nothing is written.
static SOURCES: LazyLock<Regex> = LazyLock::new(|| regex(r"\S+\.(py|pyx|cc|cpp|cu|h|hpp|rs|go):\d+"));

/// Classifies a full device. A disk is assumed if neither the line nor the frames show which.
pub fn judge(moment: &Moment, state: &FileState) -> Option<Verdict> {
    let near = moment.near();
    let line = near.lines().next().unwrap_or(near);
    // joblib finds that it cannot make semaphores, and goes on without.
    if line.contains("joblib will operate in serial mode") {
        return None;
    }
    let line = &*SOURCES.replace_all(line, "");
    let inner = moment.innermost(24);
    let named = |text: &str| PLACES.iter().find(|Place(_, regex, _)| regex.is_match(text));
    if let Some(Place(slug, _, words)) = named(line).or_else(|| named(&inner)) {
        return Some(Verdict::of(slug).because(*words));
    }
    let Some(warned) = state.mark(Mark::DiskNearlyFull) else {
        // Makers of shared memory almost always leave their frames or a path of their own.
        let unproven = "that it was a disk: neither the line nor the frames name a place, and /dev/shm gives the same words";
        return Some(Verdict::of("disk-full").not_shown(unproven));
    };
    let reason = format!("Ray warned in line {warned} that its disk was nearly full");
    Some(Verdict::of("disk-full").because(reason))
}
