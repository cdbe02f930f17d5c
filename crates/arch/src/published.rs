//! Shapes of models by their published names. Nothing is fetched.

use crate::{ModelSpec, PRESETS};

/// Returns the preset with the shape of a model on the hub, by its published name, its path or `hf:ORG/NAME`.
///
/// Fine-tuned models count as their base: `Qwen2.5-Math-7B-Instruct` is `qwen2.5-7b`.
pub fn preset_of(name: &str) -> Option<(&'static str, ModelSpec)> {
    let last = last_part(name)?;
    let mut base = last.as_str();
    while let Some(shorter) = without_suffix(base) {
        base = shorter;
    }
    // Its tower is another one.
    if base.starts_with("qwen2-vl-") {
        return None;
    }
    // (prefix of a published name, prefix of the preset); shapes are those of the published config.json.
    const KIN: [(&str, &str); 33] = [
        ("qwen2.5-math-", "qwen2.5-"),
        ("qwen2.5-coder-", "qwen2.5-"),
        ("deepseek-r1-distill-qwen-7b", "qwen2.5-7b"),
        ("deepseek-r1-distill-qwen-14b", "qwen2.5-14b"),
        ("deepseek-r1-distill-qwen-32b", "qwen2.5-32b"),
        ("qwen2-", "qwen2.5-"),
        ("qwen3.6-27b", "qwen3.5-27b"),
        ("qwen3.8-27b", "qwen3.5-27b"),
        ("qwen3.6-35b-a3b", "qwen3.5-35b-a3b"),
        ("qwen3.8-35b-a3b", "qwen3.5-35b-a3b"),
        ("glm-4.6", "glm-4.5"),
        ("glm-4.7-flash", "glm-4.7-flash"),
        ("glm-4.7", "glm-4.5"),
        ("deepseek-r1-0528", "deepseek-v3"),
        ("deepseek-r1", "deepseek-v3"),
        ("deepseek-v3-0324", "deepseek-v3"),
        ("deepseek-v3.1", "deepseek-v3"),
        ("deepseek-v3.2-exp", "deepseek-v3.2"),
        ("kimi-k2-0905", "kimi-k2"),
        ("llama-3.3-70b", "llama-3.1-70b"),
        ("mistral-7b-v0.3", "mistral-7b"),
        ("mistral-small-3.2-24b", "mistral-small-3.1-24b"),
        ("magistral-small", "mistral-small-3.1-24b"),
        ("mixtral-8x7b-v0.1", "mixtral-8x7b"),
        ("mixtral-8x7b-instruct-v0.1", "mixtral-8x7b"),
        ("mixtral-8x22b-v0.1", "mixtral-8x22b"),
        ("mixtral-8x22b-instruct-v0.1", "mixtral-8x22b"),
        ("olmoe-1b-7b-0924", "olmoe-1b-7b"),
        ("olmoe-1b-7b-0125", "olmoe-1b-7b"),
        ("olmo-2-0425-1b", "olmo-2-1b"),
        ("olmo-2-1124-7b", "olmo-2-7b"),
        ("olmo-3-1025-7b", "olmo-3-7b"),
        ("olmo-3-7b-think", "olmo-3-7b"),
    ];
    let kin = KIN.iter().find_map(|(from, to)| base.strip_prefix(from).map(|rest| format!("{to}{rest}")));
    let wanted = kin.as_deref().unwrap_or(base);
    // Mistral 7B before v0.3 has another vocabulary.
    if wanted.starts_with("mistral-7b") && kin.is_none() {
        return None;
    }
    PRESETS.iter().find(|(preset, _)| *preset == wanted).copied()
}

/// Returns the preset that an unknown name begins with: `Llama-3-8b-sft-mixture` may be `llama-3-8b`.
pub fn nearest_preset(name: &str) -> Option<&'static str> {
    let last = last_part(name)?;
    let begins = |preset: &str| last.strip_prefix(preset).is_some_and(|rest| rest.starts_with('-'));
    PRESETS
        .iter()
        .map(|(preset, _)| *preset)
        .filter(|preset| begins(preset))
        .max_by_key(|preset| preset.len())
}

fn last_part(name: &str) -> Option<String> {
    let last = name.trim_end_matches('/').rsplit(['/', ':']).next()?.to_ascii_lowercase();
    Some(last.strip_prefix("meta-").unwrap_or(&last).to_string())
}

/// Removes a suffix that names a kind of training or a date: `-instruct`, `-2507`.
fn without_suffix(name: &str) -> Option<&str> {
    let (base, last) = name.rsplit_once('-')?;
    let is_date = last.len() == 4 && last.bytes().all(|byte| byte.is_ascii_digit());
    let of_training =
        ["hf", "chat", "instruct", "base", "it", "pt", "thinking", "reasoning", "bf16", "sft", "dpo", "rlvr"];
    (is_date || of_training.contains(&last)).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_find_their_shape() {
        for (name, expect) in [
            ("Qwen/Qwen2.5-7B", Some("qwen2.5-7b")),
            ("Qwen/Qwen2.5-Math-7B-Instruct", Some("qwen2.5-7b")),
            ("Qwen/Qwen2-1.5B", Some("qwen2.5-1.5b")),
            ("meta-llama/Llama-2-13b-chat-hf", Some("llama-2-13b")),
            ("meta-llama/Meta-Llama-3-8B-Instruct", Some("llama-3-8b")),
            ("hf:meta-llama/Llama-3.1-70B", Some("llama-3.1-70b")),
            ("hf:Qwen/Qwen3-30B-A3B", Some("qwen3-30b-a3b")),
            ("Qwen/Qwen3.5-4B-Base", Some("qwen3.5-4b")),
            ("hf:Qwen/Qwen3-30B-A3B-Instruct-2507", Some("qwen3-30b-a3b")),
            ("Qwen/Qwen3-4B-Thinking-2507", Some("qwen3-4b")),
            ("OpenRLHF/Llama-3-8b-sft-mixture", None),
            ("hf:Qwen/Qwen3.6-27B", Some("qwen3.5-27b")),
            ("Qwen/Qwen3.5-35B-A3B", Some("qwen3.5-35b-a3b")),
            ("hf:Qwen/Qwen3.6-35B-A3B-FP8", None),
            ("Qwen/Qwen3.5-122B-A10B-Base", Some("qwen3.5-122b-a10b")),
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", Some("qwen3-next-80b-a3b")),
            ("Qwen/Qwen3.5-27B-FP8", None),
            ("zai-org/GLM-4.5-Air", Some("glm-4.5-air")),
            ("hf:zai-org/GLM-4.5-Air-Base", Some("glm-4.5-air")),
            ("zai-org/GLM-4.5", Some("glm-4.5")),
            ("zai-org/GLM-4.6", Some("glm-4.5")),
            ("zai-org/GLM-4.7", Some("glm-4.5")),
            ("zai-org/GLM-4.7-Flash", Some("glm-4.7-flash")),
            ("deepseek-ai/DeepSeek-V3.1", Some("deepseek-v3")),
            ("deepseek-ai/DeepSeek-V3.2-Exp", Some("deepseek-v3.2")),
            ("deepseek-ai/DeepSeek-V2-Lite-Chat", Some("deepseek-v2-lite")),
            ("hf:zai-org/GLM-5", Some("glm-5")),
            ("MiniMaxAI/MiniMax-M2", Some("minimax-m2")),
            ("deepseek-ai/DeepSeek-R1-0528", Some("deepseek-v3")),
            ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", None),
            ("moonshotai/Kimi-K2-Instruct-0905", Some("kimi-k2")),
            ("moonshotai/Moonlight-16B-A3B-Instruct", Some("moonlight-16b-a3b")),
            ("hf:Qwen/Qwen2.5-7B-Instruct-AWQ", None),
            ("baichuan-inc/Baichuan-13B-Base", Some("baichuan-13b")),
            ("/models/Qwen2.5-0.5B/", Some("qwen2.5-0.5b")),
            ("Qwen/Qwen3-8B-Base", Some("qwen3-8b")),
            ("mistralai/Mistral-7B-v0.3", Some("mistral-7b")),
            ("mistralai/Mistral-7B-v0.1", None),
            ("mistralai/Mistral-Small-24B-Instruct-2501", Some("mistral-small-24b")),
            ("mistralai/Mistral-Small-24B-Base-2501", Some("mistral-small-24b")),
            ("mistralai/Mistral-Small-3.1-24B-Base-2503", Some("mistral-small-3.1-24b")),
            ("hf:mistralai/Mistral-Small-3.2-24B-Instruct-2506", Some("mistral-small-3.1-24b")),
            ("mistralai/Ministral-3-3B-Base-2512", Some("ministral-3-3b")),
            ("mistralai/Ministral-3-8B-Instruct-2512-BF16", Some("ministral-3-8b")),
            ("hf:mistralai/Ministral-3-14B-Reasoning-2512", Some("ministral-3-14b")),
            ("mistralai/Magistral-Small-2509", Some("mistral-small-3.1-24b")),
            ("hf:mistralai/Mixtral-8x7B-Instruct-v0.1", Some("mixtral-8x7b")),
            ("mistralai/Mixtral-8x22B-v0.1", Some("mixtral-8x22b")),
            ("allenai/OLMoE-1B-7B-0125-Instruct", Some("olmoe-1b-7b")),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None),
            ("HuggingFaceTB/SmolLM3-3B-Base", Some("smollm3-3b")),
            ("allenai/OLMo-2-0425-1B-Instruct", Some("olmo-2-1b")),
            ("allenai/Olmo-3-1025-7B", Some("olmo-3-7b")),
            ("allenai/Olmo-3-7B-Instruct", Some("olmo-3-7b")),
            ("google/gemma-2-2b-it", Some("gemma-2-2b")),
            ("google/gemma-2-9b", Some("gemma-2-9b")),
            ("google/gemma-3-1b-it", Some("gemma-3-1b")),
            ("google/gemma-3-4b-pt", Some("gemma-3-4b")),
            ("google/gemma-4-31B-it", Some("gemma-4-31b")),
            ("google/gemma-4-E2B-it", Some("gemma-4-e2b")),
            ("google/gemma-4-26B-A4B-it", Some("gemma-4-26b-a4b")),
            ("ibm-granite/granite-3.3-2b-base", Some("granite-3.3-2b")),
            ("somebody/else", None),
            ("", None),
        ] {
            assert_eq!(preset_of(name).map(|(preset, _)| preset), expect, "{name}");
        }
    }

    #[test]
    fn models_of_text_and_images_are_presets_of_their_own() {
        for (name, expect) in [
            ("Qwen/Qwen2.5-VL-7B-Instruct", Some("qwen2.5-vl-7b")),
            ("hf:Qwen/Qwen3-VL-4B-Instruct", Some("qwen3-vl-4b")),
            ("Qwen/Qwen3-VL-30B-A3B-Thinking", Some("qwen3-vl-30b-a3b")),
            ("Qwen/Qwen2-VL-7B-Instruct", None),
        ] {
            assert_eq!(preset_of(name).map(|(preset, _)| preset), expect, "{name}");
        }
    }

    #[test]
    fn a_name_without_a_shape_may_begin_with_one() {
        for (name, expect) in [
            ("OpenRLHF/Llama-3-8b-sft-mixture", Some("llama-3-8b")),
            ("hf:Qwen/Qwen2.5-7B-Instruct-AWQ", Some("qwen2.5-7b")),
            ("Qwen/Qwen3-30B-A3B-FP8", Some("qwen3-30b-a3b")),
            ("Qwen/Qwen2.5-VL-7B", None),
            ("somebody/else", None),
        ] {
            assert_eq!(nearest_preset(name), expect, "{name}");
        }
    }
}
