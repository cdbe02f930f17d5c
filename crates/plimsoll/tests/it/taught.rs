//! A run that learns from a teacher.

use crate::run::Run;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const TEACHER: &str = r#"method = "sft"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 64
[train]
steps = 6
learning_rate = 1e-3
"#;

/// The teacher's last checkpoint.
pub const NEWEST: &str = "step-000006";

pub const RUN: &str = r#"method = "distill"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
[distill]
teacher = "TEACHER"
[train]
steps = 4
learning_rate = 3e-4
[checkpoint]
every = 1
keep = 3
"#;

/// The files of the teacher's checkpoint, which is trained once: by their paths in it.
static FILES: OnceLock<Vec<(PathBuf, Vec<u8>)>> = OnceLock::new();

fn files() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Run::named("teacher.toml", TEACHER);
    folder.train("teacher", &[]);
    let root = folder.path("teacher/checkpoints/latest");
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(within) = folders.pop() {
        for entry in fs::read_dir(root.join(&within)).expect("a folder").flatten() {
            let path = within.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path)
            } else {
                found.push((path, fs::read(entry.path()).expect("a file")))
            }
        }
    }
    found
}

/// A folder with a teacher that a few supervised steps moved, and a run that learns from it.
pub fn taught() -> Run {
    let folder = Run::named("teacher.toml", TEACHER);
    let saved = folder.path("teacher/checkpoints").join(NEWEST);
    for (path, bytes) in FILES.get_or_init(files) {
        let to = saved.join(path);
        fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).expect("a folder");
        fs::write(to, bytes).expect("a file");
    }
    symlink(NEWEST, folder.path("teacher/checkpoints/latest")).expect("a link");
    folder.write("x.toml", &RUN.replace("TEACHER", &folder.text_path("teacher/checkpoints/latest")));
    folder.file("x.toml")
}
