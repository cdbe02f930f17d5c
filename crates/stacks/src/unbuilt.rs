//! Features of other stacks that a run here lacks. A job without one differs, so it is refused unless forced.

use crate::launch::shell::BRANCH;
use crate::setting::{Setting, flag, number, one_line};
use crate::subject::Subject;
use plimsoll_base::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unbuilt {
    /// An adapter other than plain LoRA, or one that the file does not show.
    Adapters,
    /// Weights in 4 or 8 bits.
    Quantisation,
    /// A mixture of experts of a family other than Qwen3-MoE, or from a GGUF file.
    Experts,
    /// An optimizer that is neither AdamW nor OpenRLHF's Muon.
    Optimizer,
    /// A part of the objective: a term of the loss, or its input.
    Objective,
    /// Prompts with pictures for other models than are built, or with videos.
    Images,
    /// Turns between the model and tools that are neither a class nor functions of a file that the launch file shows.
    Turns,
    /// An adapter of layers that no family here has, by their names.
    Targets,
    /// A model of a family that is not built, by its name.
    Family,
    /// An adapter of all linear layers, in a model where these include routers.
    Routers,
    /// A class or a function that exists only within a call of another one.
    Nested,
    /// A class in the file that derives from a trainer.
    Trainer,
    /// A class that plays episodes with methods other than an environment's here.
    Agent,
    /// Rows of text alone, all of whose tokens are learnt.
    PlainText,
    /// Positions other than those of the model's own configuration.
    Positions,
    /// A part of the weights that stays as it is, or that alone is trained.
    Frozen,
    /// An unknown option whose name shows its subject.
    Unknown(Subject),
    /// An option that decides the job but has an unreadable value.
    Unread(Subject),
}

impl Unbuilt {
    fn name(self) -> &'static str {
        match self {
            Unbuilt::Adapters => "such an adapter",
            Unbuilt::Quantisation => "quantised weights",
            Unbuilt::Experts => "experts",
            Unbuilt::Optimizer => "another optimizer",
            Unbuilt::Objective => "a part of the objective",
            Unbuilt::Images => "pictures",
            Unbuilt::Turns => "turns with tools",
            Unbuilt::Targets => "an adapter of layers that no family here has",
            Unbuilt::Family => "the model's family",
            Unbuilt::Routers => "an adapter of the router",
            Unbuilt::Nested => "a class or a function within another function",
            Unbuilt::Trainer => "a trainer of the file's own",
            Unbuilt::Agent => "an agent's class",
            Unbuilt::PlainText => "text without an answer",
            Unbuilt::Positions => "other positions",
            Unbuilt::Frozen => "weights that stay as they are",
            Unbuilt::Unknown(subject) | Unbuilt::Unread(subject) => subject.name(),
        }
    }

    /// Returns true if it concerns an adapter.
    pub fn is_adapter(self) -> bool {
        matches!(
            self,
            Unbuilt::Adapters
                | Unbuilt::Targets
                | Unbuilt::Routers
                | Unbuilt::Unknown(Subject::Adapter)
                | Unbuilt::Unread(Subject::Adapter)
        )
    }

    /// Returns what a run file does without it, in general.
    pub fn without(self) -> &'static str {
        match self {
            Unbuilt::Adapters => {
                "an adapter here is plain LoRA of linear layers other than routers, the same in every layer"
            }
            Unbuilt::Quantisation => "weights are bf16 or f32 here, or 4 bits under adapters",
            Unbuilt::Experts => {
                "of models with experts Qwen3-MoE, Qwen3.5-MoE, Qwen3-Next, GLM-4.5 to 4.7, Moonlight, DeepSeek-V3, gpt-oss and Gemma 4 are built, and not from GGUF files: name one of these, or a dense model"
            }
            Unbuilt::Optimizer => {
                "the optimizer is AdamW or Muon here, for which another one's learning rate is not meant"
            }
            Unbuilt::Objective => "the objective here has no such part",
            Unbuilt::Images => {
                "of what is not text, images are read here, by Qwen2.5-VL, Qwen3-VL and Qwen3.5"
            }
            Unbuilt::Turns => {
                "an episode is one response here, unless [environment] names a class whose methods are the tools, or functions written with `def`, of the script or of a module next to it: docs/environments.md"
            }
            Unbuilt::Targets => {
                "the linear layers here are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj, and those of linear attention: for a model that is built name these, or all-linear, in a copy of the file"
            }
            Unbuilt::Family => {
                "its layers are no decoder of a family that is built: docs/models.md lists those, name a model of one"
            }
            Unbuilt::Routers => {
                "the model has experts, and the adapter is of all its linear layers, the router among them, which stays frozen here: name the layers in a copy of the file, such as q_proj, k_proj, v_proj, o_proj"
            }
            Unbuilt::Nested => {
                "it is defined within another function, so that no worker can import it: move it to the top level of a copy of the file, or to a file of its own"
            }
            Unbuilt::Trainer => {
                "its methods may change the loss and the episodes, and are not read: use the class that it derives from in a copy of the file"
            }
            Unbuilt::Agent => {
                "its class has reset(states) and step(states), an environment here reset(seed) and step(response), and gets its prompts itself: write it as docs/environments.md says, and name it as environment.env"
            }
            Unbuilt::PlainText => {
                "a row here is a prompt and its answer, or a conversation whose answers are learnt: tokens of other text are not"
            }
            Unbuilt::Positions => "positions are those of the model's config.json here: write it there",
            Unbuilt::Frozen => "every weight is trained here, or those of an adapter alone",
            Unbuilt::Unknown(_) => {
                "this option is not known here, and its name says that the job is another one without it: if it is not, take it out of a copy of the file"
            }
            Unbuilt::Unread(_) => "what it holds decides the job, and cannot be read",
        }
    }
}

/// Returns true if an unbuilt row's setting enables it: a number above 0, a switch that is on, or a name.
pub(crate) fn asks(given: &Setting) -> bool {
    let text = given.value.trim();
    match (number(text), flag(text)) {
        _ if given.unreadable.is_some() => true,
        _ if given.is_unset() || text == "[]" => false,
        (Some(count), _) => count > 0.0,
        (None, Some(on)) => on,
        (None, None) => true,
    }
}

/// Returns one line: the setting, what it needs, what a run does without it.
pub(crate) fn line(what: Unbuilt, given: &Setting) -> String {
    format!("{}: {}: {}", given.shown(), what.name(), why(what, given))
}

/// Returns why a setting is refused: what a run does without it, or why its value is not known.
fn why(what: Unbuilt, given: &Setting) -> String {
    match (what, given.unreadable) {
        (Unbuilt::Unread(_), Some(BRANCH)) => format!(
            "it decides the job, and {BRANCH} (line {}): keep the arm that you mean in a copy of the file",
            given.branch
        ),
        (Unbuilt::Unread(_), Some(reason)) => {
            format!("{}: {reason}: write its value in a copy of the file", what.without())
        }
        _ => what.without().to_string(),
    }
}

/// Returns the error for a job that needs unbuilt features.
///
/// Each has a flag: whether it is a default of `title`, which no line of the file has.
pub(crate) fn refusal(file: &str, title: &str, found: &[(Unbuilt, &Setting, bool)]) -> Error {
    let mut names: Vec<&str> = Vec::new();
    for (what, ..) in found {
        if !names.contains(&what.name()) {
            names.push(what.name());
        }
    }
    let message = format!("{} asks for what is not built here: {}", one_line(file), names.join(", "));
    let error = Error::usage("import-not-built", message);
    let place = |given: &Setting, is_default: bool| match given.line {
        _ if is_default => format!("a default of {title}: "),
        0 => String::new(),
        _ => given.place() + ": ",
    };
    let error = found.iter().fold(error, |error, (what, given, is_default)| {
        error.fact(format!("{}{}: {}", place(given, *is_default), given.shown(), why(*what, given)))
    });
    error.hint(
        "change the job there, or import the rest of it with --force: the run file then says what is missing",
    )
}

/// Returns the unbuilt feature in a model's published name: `Mixtral-8x7B` has other experts, `...-AWQ` has 4 bits.
pub(crate) fn of_model(name: &str) -> Option<Unbuilt> {
    const BUILT: [&str; 15] = [
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "qwen3-coder-30b-a3b",
        "qwen3-coder-480b-a35b",
        "qwen3.5-35b-a3b",
        "qwen3.5-122b-a10b",
        "qwen3.5-397b-a17b",
        "qwen3.6-35b-a3b",
        "qwen3-next",
        "glm-4.5",
        "glm-4.6",
        "glm-4.7",
        "moonlight-16b-a3b",
        "gpt-oss",
        "gemma-4-26b-a4b",
    ];
    const QUANTISED: [&str; 10] =
        ["awq", "gptq", "bnb", "4bit", "8bit", "int4", "int8", "nf4", "fp8", "w4a16"];
    let last = last_of(name);
    let parts = parts_of(&last);
    let is_built = BUILT.iter().any(|name| last.starts_with(name)) && !parts.contains(&"gguf");
    // Published in 8 bits or fewer, whatever their names say; V3.2 has other attention, K2.5 a tower.
    let is_v3 =
        is_deepseek_r1(&last) || last.starts_with("deepseek-v3") && !last.starts_with("deepseek-v3.2");
    let is_k2 = last.starts_with("kimi-k2") && !last.starts_with("kimi-k2.");
    let is_ministral = last.starts_with("ministral-3-") && parts.contains(&"instruct");
    const OF_PICTURES: [&str; 15] = [
        "vl", "vlm", "vision", "omni", "llava", "smolvlm", "smolvlm2", "pixtral", "internvl", "idefics",
        "idefics2", "idefics3", "audio", "janus", "emu3",
    ];
    // Convolutions next to attention, and layers of Mamba.
    const OTHER_LAYERS: [&str; 2] = ["lfm2", "granite-4"];
    match () {
        () if (is_v3 || is_k2 || is_ministral) && !parts.contains(&"gguf") => {
            (!parts.contains(&"bf16")).then_some(Unbuilt::Quantisation)
        }
        () if has_experts(name) && !is_built => Some(Unbuilt::Experts),
        () if OTHER_LAYERS.iter().any(|family| last.starts_with(family)) => Some(Unbuilt::Family),
        () if parts.iter().any(|part| OF_PICTURES.contains(part)) && !sees(name) => Some(Unbuilt::Images),
        () if parts.iter().any(|part| QUANTISED.contains(part)) => Some(Unbuilt::Quantisation),
        () => None,
    }
}

/// Returns true for a model whose published name is that of a family that reads images here.
pub(crate) fn sees(name: &str) -> bool {
    ["qwen2.5-vl-", "qwen3-vl-"].iter().any(|family| last_of(name).starts_with(family))
}

/// Returns true for a model of a family all of whose models see, and are trained on text as well.
pub(crate) fn may_see(name: &str) -> bool {
    ["qwen3.5-", "qwen3.6-"].iter().any(|family| last_of(name).starts_with(family))
}

fn last_of(name: &str) -> String {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_ascii_lowercase()
}

fn parts_of(last: &str) -> Vec<&str> {
    last.split(['-', '_', '.', ' ', ':']).collect()
}

/// Returns true if a model's published name shows experts.
pub(crate) fn has_experts(name: &str) -> bool {
    let last = last_of(name);
    let parts = parts_of(&last);
    let is_count = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    // `A3B` are the parameters per token, `8x7B` experts times parameters.
    let active =
        |part: &&str| part.strip_prefix('a').and_then(|rest| rest.strip_suffix('b')).is_some_and(is_count);
    let times = |part: &&str| {
        part.strip_suffix('b')
            .and_then(|rest| rest.split_once('x'))
            .is_some_and(|(a, b)| is_count(a) && is_count(b))
    };
    const EXPERTS: [&str; 19] = [
        "minimax-m2",
        "mixtral",
        "dbrx",
        "grok",
        "jamba",
        "moe",
        "olmoe",
        "deepseek-v2",
        "deepseek-v3",
        "deepseek-v4",
        "glm-5",
        "deepseek-moe",
        "gpt-oss",
        "kimi-k2",
        "glm-4.5",
        "glm-4.6",
        "glm-4.7",
        "llama-4",
        "qwen3-next",
    ];
    parts.iter().any(active)
        || parts.iter().any(times)
        || EXPERTS.iter().any(|name| last.starts_with(name) || parts.contains(name))
        || is_deepseek_r1(&last)
}

/// Returns true for the models of DeepSeek V3's shape, not for those that were distilled from them.
fn is_deepseek_r1(last: &str) -> bool {
    // `DeepSeek-R1-0528-Qwen3-8B` is a distilled one, without experts.
    let is_dated = last.starts_with("deepseek-r1-0") && !last.contains("-qwen");
    is_dated || ["deepseek-r1", "deepseek-r1-zero", "deepseek-r1-bf16"].contains(&last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_that_are_not_built() {
        let experts = Some(Unbuilt::Experts);
        let bits = Some(Unbuilt::Quantisation);
        for (name, expect) in [
            ("Qwen/Qwen3-30B-A3B", None),
            ("Qwen/Qwen3-235B-A22B-Instruct-2507", None),
            ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", bits),
            ("Qwen/Qwen3-30B-A3B-GGUF", experts),
            ("Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", experts),
            ("/models/Qwen3-30B-A3B-Q4_K_M.gguf", experts),
            ("Qwen/Qwen3-8B-GGUF", None),
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", None),
            ("Qwen/Qwen3.5-35B-A3B", None),
            ("Qwen/Qwen3.5-397B-A17B", None),
            ("zai-org/GLM-4.5-Air", None),
            ("zai-org/GLM-4.7-Flash", None),
            ("zai-org/GLM-4.6-FP8", bits),
            ("zai-org/GLM-5", experts),
            ("moonshotai/Moonlight-16B-A3B-Instruct", None),
            ("moonshotai/Kimi-K2-Instruct", bits),
            ("moonshotai/Kimi-K2.5", experts),
            ("MiniMaxAI/MiniMax-M2.5", experts),
            ("mistralai/Ministral-3-8B-Instruct-2512", bits),
            ("mistralai/Ministral-3-8B-Instruct-2512-BF16", None),
            ("mistralai/Ministral-3-8B-Base-2512", None),
            ("google/gemma-4-31B-it", None),
            ("unsloth/DeepSeek-V3-0324-BF16", None),
            ("deepseek-ai/DeepSeek-V3.2", experts),
            ("Qwen/Qwen3.5-35B-A3B-FP8", bits),
            ("Qwen/Qwen3-VL-30B-A3B-Instruct", experts),
            ("Qwen/Qwen2.5-VL-7B-Instruct", None),
            ("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", bits),
            ("Qwen/Qwen2-VL-7B-Instruct", Some(Unbuilt::Images)),
            ("$ROOT/models/Qwen3-VL-2B-Instruct", None),
            ("llava-hf/llava-1.5-7b-hf", Some(Unbuilt::Images)),
            ("Qwen/Qwen2-Audio-7B-Instruct", Some(Unbuilt::Images)),
            ("Qwen/Qwen1.5-MoE-A2.7B", experts),
            ("mistralai/Mixtral-8x7B-v0.1", experts),
            ("deepseek-ai/DeepSeek-V3-0324", bits),
            ("deepseek-ai/DeepSeek-R1", bits),
            ("openai/gpt-oss-20b", None),
            ("google/gemma-4-26B-A4B-it", None),
            ("/models/Qwen3-30B-A3B/", None),
            ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", bits),
            ("Qwen/Qwen2.5-7B-Instruct-AWQ", bits),
            ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", bits),
            ("deepseek-ai/DeepSeek-R1-0528", bits),
            ("unsloth/DeepSeek-R1-0528-Qwen3-8B", None),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None),
            ("LiquidAI/LFM2-1.2B", Some(Unbuilt::Family)),
            ("unsloth/granite-4.0-h-micro", Some(Unbuilt::Family)),
            ("ibm-granite/granite-3.3-8b-instruct", None),
            ("Qwen/Qwen2.5-7B", None),
            ("Qwen/Qwen3-8B-Base", None),
            ("mistralai/Mistral-7B-v0.3", None),
            ("HuggingFaceTB/SmolLM2-135M", None),
            ("model-q4_0.gguf", None),
            ("", None),
        ] {
            assert_eq!(of_model(name), expect, "{name}");
        }
    }

    #[test]
    fn a_switch_that_is_off_asks_for_nothing() {
        for (value, expect) in [
            ("", true),
            ("True", true),
            ("64", true),
            ("all-linear", true),
            ("0", false),
            ("False", false),
            ("None", false),
        ] {
            assert_eq!(asks(&Setting::new("lora_rank", value, 1)), expect, "{value}");
        }
    }
}
