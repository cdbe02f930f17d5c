//! What looks like a key or a password: by the name of what holds it, or by how it begins.

/// What is written instead of a secret.
pub const WITHHELD: &str = "(not shown)";
/// How keys of well-known services begin, and the fewest characters that follow.
const BEGINNINGS: [&str; 2] = ["hf_", "wandb_v1_"];
const FOLLOWING_MIN: usize = 16;

/// True if something with this name holds a secret: `hub.api_key`, `env.HF_TOKEN`, `--hub-token`.
pub fn is_name_of_secret(name: &str) -> bool {
    const PARTS: [&str; 7] =
        ["api_key", "apikey", "access_key", "wandb_key", "secret", "passw", "credential"];
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().replace('-', "_");
    last.rsplit('_').next() == Some("token") || PARTS.iter().any(|part| last.contains(part))
}

/// True if a word is a key of a well-known service.
pub fn is_key(word: &str) -> bool {
    let follows = |start: &&str| word.strip_prefix(*start).is_some_and(|more| more.len() >= FOLLOWING_MIN);
    BEGINNINGS.iter().any(follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets() {
        for (name, expect) in [
            ("env.HF_TOKEN", true),
            ("env.WANDB_API_KEY", true),
            ("ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY", true),
            ("token", true),
            ("hub-token", true),
            ("--api-key", true),
            ("env.MLFLOW_TRACKING_PASSWORD", true),
            ("env.AWS_SECRET_ACCESS_KEY", true),
            ("data.reward_fn_key", false),
            ("max_tokens", false),
            ("tokenizer", false),
        ] {
            assert_eq!(is_name_of_secret(name), expect, "{name}");
        }
        assert!(is_key("hf_0123456789abcdefXYZ") && !is_key("hf_models"));
    }
}
