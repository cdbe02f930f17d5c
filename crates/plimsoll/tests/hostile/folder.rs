//! A temporary folder with a run file, and the copies of `builtin:nano` that the cases damage.

use crate::common::{check_error, plimsoll};
use std::path::{Path, PathBuf};

/// The files of `builtin:nano`, as a model directory.
pub const NANO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../files/assets/nano");

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "hash"
[train]
steps = 3
learning_rate = 1e-5
"#;

pub struct Folder(tempfile::TempDir);

impl Folder {
    /// With `x.toml`: three small steps, whose rewards differ within every group.
    pub fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a temporary folder"));
        folder.write("x.toml", RUN);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_string()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), content).expect("a file in it");
        self.text(name)
    }

    /// A directory `name` with a fresh copy of the nano model.
    pub fn nano(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).expect("a directory");
        for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(Path::new(NANO).join(file), dir.join(file)).expect("a copy");
        }
        dir
    }

    /// `train x.toml` into `dir`, with further `--set`.
    pub fn train(&self, dir: &str, sets: &[&str]) -> Vec<String> {
        let mut args = vec!["train".to_string(), self.text("x.toml")];
        args.extend(["--set".to_string(), format!("run.dir={}", self.text(dir))]);
        args.extend(sets.iter().flat_map(|set| ["--set".to_string(), set.to_string()]));
        args
    }

    /// Training must end with that error, and without a run directory where it ends before its first step.
    pub fn check_train(&self, sets: &[&str], code: i32, contains: &[&str]) {
        let args = self.train("out", sets);
        let args = refs(&args);
        check_error(&args, &plimsoll(&args), code, contains);
        assert!(!self.path("out").exists(), "{args:?} left a run directory");
    }

    /// No file under `name` has the name of one that is being written.
    pub fn check_whole(&self, name: &str) {
        let mut open = vec![self.path(name)];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(&dir).expect("readable").flatten() {
                let path = entry.path();
                assert!(!path.to_string_lossy().ends_with(".part"), "{} is left", path.display());
                if path.is_dir() && !path.is_symlink() {
                    open.push(path);
                }
            }
        }
    }
}

pub fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}
