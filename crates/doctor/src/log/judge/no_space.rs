//! "No space left on device" is shared memory or a disk: the path decides, not the words.

use crate::log::event::{Moment, Verdict};
use crate::log::text::regex;
use regex::Regex;
use std::sync::LazyLock;

static PATHS: LazyLock<[(&str, Regex); 4]> = LazyLock::new(|| {
    [
        ("shm-full-nccl", regex(r"/dev/shm/nccl-|NCCL (WARN|ERROR)")),
        ("shm-full-ray", regex(r"/dev/shm/(plasma|ray)|plasma_store|PlasmaStore|plasma/")),
        (
            "shm-full-torch",
            regex(
                r"/dev/shm|</?torch_\d|_multiprocessing\.SemLock|multiprocessing/synchronize\.py|multiprocessing/shared_memory\.py|/psm_|_share_f(d|ilename)\w*\(|multiprocessing/reductions\.py|multiprocessing/heap\.py",
            ),
        ),
        (
            "disk-full",
            regex(
                r#"(?i)device: ?['"]?/|write (failed|error)[^\n]{0,80}/|/(tmp|var|home|root|mnt|data|workspace|scratch|ckpt|checkpoints?|outputs?|opt|usr|nfs|lustre|local|cache|raid|ssd|nvme)\b[^\n]*No space|torch/serialization\.py|torch\.save\(|PytorchStreamWriter|safetensors|save_pretrained|save_checkpoint|logging/__init__\.py|\.write\(|shutil\.|copyfile|json\.dump|tensorboard|wandb|object_spill|spill|overlay"#,
            ),
        ),
    ]
});

/// Classifies a full device. Returns `None` if neither the line nor the frames show which.
pub fn judge(moment: &Moment) -> Option<Verdict> {
    let near = moment.near();
    let line = near.lines().next().unwrap_or(near);
    let inner = moment.innermost(24);
    let (slug, place) = PATHS
        .iter()
        .find_map(|(slug, regex)| Some((*slug, regex.find(line)?.as_str())))
        .or_else(|| PATHS.iter().find_map(|(slug, regex)| Some((*slug, regex.find(&inner)?.as_str()))))?;
    Some(Verdict::of(slug).because(format!("`{}` shows what was written to", place.trim())))
}
