//! Lists what a job's processes find around them: variables, and lines of a shell before the command.

use plimsoll_base::{Error, Result, is_name_of_secret};

/// Variables that launchers and ranks set themselves.
const OWN: [&str; 11] = [
    "PLIMSOLL_TOKEN",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "HOST_RANK",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "SLURM_PROCID",
];

/// A variable of the run's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
}

impl EnvVar {
    /// Reads `NAME=VALUE`.
    ///
    /// Errors: `launch-word`.
    pub fn parse(text: &str) -> Result<EnvVar> {
        match text.split_once('=') {
            Some((name, value)) => Ok(EnvVar { name: name.into(), value: value.into() }),
            None => Err(refused(&format!("--env {text} has no value")).hint(format!("--env {text}=VALUE"))),
        }
    }

    /// Refuses a name that no shell takes, one that the job sets itself, and a secret, which the files would show.
    pub(crate) fn check(&self) -> Result<()> {
        let EnvVar { name, value } = self;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !is_name {
            return Err(refused(&format!("--env {name:?} is no name of a variable"))
                .hint("letters, digits and `_`, and no digit first"));
        }
        if OWN.contains(&name.as_str()) {
            return Err(refused(&format!("--env {name}: the job sets it itself, for each rank or start"))
                .hint("leave it out"));
        }
        if value.chars().any(char::is_control) {
            return Err(refused(&format!("--env {name}: its value has control characters"))
                .hint("set it in the lines of --before"));
        }
        if is_name_of_secret(name) {
            return Err(refused(&format!(
                "--env {name} is a secret by its name, and would be written into the files"
            ))
            .hint("Slurm and Ray take it from where you submit: export it there")
            .hint("Kubernetes takes it from a Secret: --patch FILE, with env and secretKeyRef")
            .hint("with ssh, read it from a file of the host in the lines of --before"));
        }
        Ok(())
    }
}

/// Refuses an option of a launcher's own program that the plan decides, or that is no option.
///
/// Errors: `launch-word`.
pub(crate) fn check_option(flag: &str, text: &str, decided: &[(&str, &str)]) -> Result<()> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let is_key = key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !is_key || value.chars().any(char::is_control) {
        let without = text.trim_start_matches('-');
        return Err(refused(&format!("{flag} {text:?} is no long option with its value")).hint(format!(
            "write it without dashes, as {flag} {}",
            if without.is_empty() { "qos=NAME" } else { without }
        )));
    }
    if let Some((_, by)) = decided.iter().find(|(own, _)| *own == key) {
        return Err(refused(&format!("{flag} {key}: the plan decides it")).hint(*by));
    }
    Ok(())
}

fn refused(what: &str) -> Error {
    Error::usage("launch-word", what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_no_secret() {
        let checked = |text: &str| EnvVar::parse(text).and_then(|var| var.check());
        for fine in ["NCCL_IB_HCA=mlx5", "A=", "_x=a=b", "MASTER_ADDR=10.0.0.1", "HF_HOME=/shared/hf"] {
            assert!(checked(fine).is_ok(), "{fine}");
        }
        for (text, words) in [
            ("NCCL_DEBUG", "has no value"),
            ("A-B=1", "no name of a variable"),
            ("1A=1", "no name of a variable"),
            ("RANK=0", "sets it itself"),
            ("A=\n", "control characters"),
            ("HF_TOKEN=x", "is a secret by its name"),
            ("WANDB_API_KEY=x", "is a secret by its name"),
        ] {
            let error = checked(text).expect_err(text);
            assert!(error.slug == "launch-word" && error.message.contains(words), "{text}: {error}");
            assert!(!format!("{error:?}").contains("=x"), "a secret is not repeated: {error:?}");
        }
    }

    #[test]
    fn an_option_of_the_launcher_is_no_part_of_the_plan() {
        let decided = [("nodes", "--hosts H"), ("mem", "--host-memory")];
        let checked = |text: &str| check_option("--sbatch", text, &decided);
        for fine in ["qos=high", "gres=gpu:h100:8", "exclusive", "mail-user=a@b"] {
            assert!(checked(fine).is_ok(), "{fine}");
        }
        for bad in ["--qos=high", "", "-q", "nodes=3", "mem=1", "Qos=1", "a=\n"] {
            assert_eq!(checked(bad).expect_err(bad).slug, "launch-word");
        }
        assert!(format!("{:?}", checked("--qos=high").unwrap_err()).contains("--sbatch qos=high"));
    }
}
