//! The subject of an option, from the words of its name. For an option that no table knows, this alone tells one that
//! changes the job, such as an adapter or a loss term, from one of an engine or a logger.

/// Something whose omission makes a different job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Adapter,
    /// The loss: its objective, its KL term, its clips, its advantages.
    Loss,
    /// More than one turn per episode.
    Turns,
    Tools,
    Teacher,
    /// A model that grades.
    Judge,
    /// Which samples are trained: those that are filtered, rejected or masked.
    Samples,
}

/// Words, or two adjacent words, that name a subject, in order of precedence.
const WORDS: [(Subject, &[&str]); 7] = [
    (Subject::Adapter, &["lora", "qlora", "rslora", "dora", "peft", "adapter", "adapters"]),
    (Subject::Teacher, &["teacher", "teachers", "distill", "distillation"]),
    (Subject::Judge, &["judge", "judges", "critic model", "reward model", "reward models"]),
    (Subject::Turns, &["multiturn", "turn", "turns", "agent loop", "agent func", "rollout func"]),
    (Subject::Tools, &["tool", "tools", "mcp", "function call", "function calls", "function calling"]),
    (
        Subject::Loss,
        &[
            "loss",
            "losses",
            "objective",
            "objectives",
            "advantage",
            "advantages",
            "adv",
            "kl",
            "clip",
            "clips",
            "clipping",
            "cliprange",
            "beta",
            "importance",
            "pf ppo",
            "entropy",
            "penalty",
            "penalties",
            "bonus",
        ],
    ),
    (
        Subject::Samples,
        &[
            "rejection",
            "reject",
            "rejected",
            "filter",
            "filters",
            "filtering",
            "oversample",
            "oversampling",
            "dynamic sampling",
            "accuracy lower",
            "accuracy upper",
        ],
    ),
];
/// Words in parts of a name that measure or surround a job.
const AROUND: [&str; 3] = ["profiler", "ema", "inference"];
/// Lists what is done with an entropy that no loss has, and with prompts before any is drawn.
const HARMLESS: [[&str; 2]; 9] = [
    ["calculate", "entropy"],
    ["compute", "entropy"],
    ["log", "entropy"],
    ["entropy", "checkpointing"],
    ["entropy", "from"],
    ["entropy", "chunk"],
    ["entropy", "chunking"],
    ["filter", "overlong"],
    // Of a trainer and another engine that samples.
    ["policy", "correction"],
];

impl Subject {
    /// Returns the subject's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Adapter => "an adapter",
            Subject::Loss => "the loss",
            Subject::Turns => "the turns of an episode",
            Subject::Tools => "tools",
            Subject::Teacher => "a teacher",
            Subject::Judge => "a model that grades",
            Subject::Samples => "which samples are trained",
        }
    }
}

/// Returns the subject of `key`; `None` if no word shows it.
pub(crate) fn subject_of(key: &str) -> Option<Subject> {
    let key = key.to_ascii_lowercase();
    let parts: Vec<Vec<&str>> = key.split(['.', '/']).map(|part| part.split(['_', '-']).collect()).collect();
    // Gradient clipping is not part of the loss.
    let is_of_gradients = |part: &[&str]| part.contains(&"grad") && part.contains(&"clip");
    let is_harmless = |part: &[&str]| part.windows(2).any(|two| HARMLESS.iter().any(|words| two == words));
    let is_around = |part: &Vec<&str>| {
        part.iter().any(|word| AROUND.contains(word)) || is_of_gradients(part) || is_harmless(part)
    };
    // `train_dataset.filter`: code that makes the rows.
    let is_of_rows = ["train_dataset.", "eval_dataset."].iter().any(|start| key.starts_with(start));
    if key.contains("env_vars") || is_of_rows || parts.iter().any(is_around) {
        return None;
    }
    let has = |names: &&str| match names.split_once(' ') {
        Some((first, second)) => parts.iter().any(|part| part.windows(2).any(|two| two == [first, second])),
        None => parts.iter().flatten().any(|word| word == names),
    };
    WORDS.iter().find(|(_, names)| names.iter().any(&has)).map(|(subject, _)| *subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_a_subject() {
        for (key, expect) in [
            ("actor_rollout_ref.model.lora_adapter_path", Some(Subject::Adapter)),
            ("peft_config.layers_to_transform", Some(Subject::Adapter)),
            ("actor_rollout_ref.rollout.multi_turn.max_user_turns", Some(Subject::Turns)),
            ("actor_rollout_ref.rollout.agent.default_agent_loop", Some(Subject::Turns)),
            ("tool_parser", Some(Subject::Tools)),
            ("function_calling_format", Some(Subject::Tools)),
            ("algorithm.kl_ctrl.warmup", Some(Subject::Loss)),
            ("cliprange", Some(Subject::Loss)),
            ("actor.entropy_coeff_end", Some(Subject::Loss)),
            ("teacher_model_name_or_path", Some(Subject::Teacher)),
            ("reward.reward_model.enable", Some(Subject::Judge)),
            ("judge", Some(Subject::Judge)),
            ("actor.adaptive_entropy.enabled", Some(Subject::Loss)),
            ("actor.use_token_entropy_separate", Some(Subject::Loss)),
            ("trainer.entropy_target", Some(Subject::Loss)),
            ("algorithm.length_penalty", Some(Subject::Loss)),
            ("trainer.rejection_sample", Some(Subject::Samples)),
            ("data.filter_accuracy", Some(Subject::Samples)),
            ("data.accuracy_lower_bound", Some(Subject::Samples)),
            ("data.oversample_factor", Some(Subject::Samples)),
            ("dynamic_filtering_mode", Some(Subject::Samples)),
            ("data.filter_overlong_prompts_workers", None),
            ("actor.entropy_from_logits_with_chunking", None),
            ("log_entropy", None),
            ("critic.model.use_shm", None),
            ("actor_rollout_ref.actor.profiler.tool_config.torch", None),
            ("generator.inference_engine.enable_lora", None),
            ("trainer.algorithm.off_policy_correction.token_tis_ratio_clip_high", None),
            ("train_dataset.filter", None),
            ("critic.grad_clip", None),
            ("exploration", None),
            ("returns", None),
            ("calculate_entropy", None),
            ("logging_steps", None),
            ("", None),
        ] {
            assert_eq!(subject_of(key), expect, "{key}");
        }
    }
}
