//! The kinds of value that a key can have besides numbers and strings: `"auto"`, bytes, and closed sets of names.

use plimsoll_algo::shaping::GroupFilter;
use plimsoll_base::{Bytes, DType};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// The name of a value in messages about its type.
pub trait Expecting {
    /// For example `a whole number`.
    const EXPECTING: &'static str;

    /// True if some strings are values, so that a wrong string is a wrong value rather than a wrong type.
    const TAKES_TEXT: bool = true;

    /// True if some lists are values.
    const TAKES_LIST: bool = false;
}

/// A value that the planner may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Auto<T> {
    /// `"auto"`: the planner chooses, and records what it chose.
    #[default]
    Auto,
    /// Chosen in the run file.
    Value(T),
}

impl<T: Copy> Auto<T> {
    /// Returns the value, or none for `"auto"`.
    pub fn value(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Value(value) => Some(value),
        }
    }

    /// Returns the value, or `chosen` for `"auto"`.
    pub fn or(self, chosen: T) -> T {
        self.value().unwrap_or(chosen)
    }

    pub fn is_auto(&self) -> bool {
        matches!(self, Auto::Auto)
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Auto::Auto => serializer.serialize_str("auto"),
            Auto::Value(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de> + Expecting> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AutoVisitor(std::marker::PhantomData))
    }
}

struct AutoVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de> + Expecting> Visitor<'de> for AutoVisitor<T> {
    type Value = Auto<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"auto\" or {}", T::EXPECTING)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Auto<T>, E> {
        if text == "auto" {
            return Ok(Auto::Auto);
        }
        let inner: Result<T, de::value::Error> = T::deserialize(text.into_deserializer());
        inner.map(Auto::Value).map_err(|_| {
            let refuse = if T::TAKES_TEXT { E::invalid_value } else { E::invalid_type };
            refuse(Unexpected::Str(text), &self)
        })
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Auto<T>, A::Error> {
        if !T::TAKES_LIST {
            return Err(de::Error::invalid_type(Unexpected::Seq, &self));
        }
        T::deserialize(de::value::SeqAccessDeserializer::new(list)).map(Auto::Value)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Auto<T>, E> {
        let inner: Result<T, de::value::Error> = T::deserialize(flag.into_deserializer());
        inner.map(Auto::Value).map_err(|_| E::invalid_type(Unexpected::Bool(flag), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Auto<T>, E> {
        let inner: Result<T, de::value::Error> = T::deserialize(number.into_deserializer());
        inner.map(Auto::Value).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Auto<T>, E> {
        let inner: Result<T, de::value::Error> = T::deserialize(number.into_deserializer());
        inner.map(Auto::Value).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}

impl<T: JsonSchema> JsonSchema for Auto<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Auto_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "auto" }, value] })
    }
}

impl Expecting for u32 {
    const EXPECTING: &'static str = "a whole number from 0 to 4294967295";
    const TAKES_TEXT: bool = false;
}

impl Expecting for bool {
    const EXPECTING: &'static str = "true or false";
    const TAKES_TEXT: bool = false;
}

/// A number of bytes as run files write it: an integer, or a string such as `"60GiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub Bytes);

impl Expecting for ByteSize {
    const EXPECTING: &'static str = "bytes, such as 1048576 or \"60GiB\"";
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.0;
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if bytes > 0 && bytes.is_multiple_of(1 << shift) {
                return serializer.serialize_str(&format!("{}{unit}", bytes >> shift));
            }
        }
        // TOML's numbers end at half of u64.
        match i64::try_from(bytes) {
            Ok(number) => serializer.serialize_i64(number),
            Err(_) => serializer.serialize_str(&bytes.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ByteSize::EXPECTING)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        Bytes::parse(text).map(ByteSize).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<ByteSize, E> {
        let bytes = u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))?;
        Ok(ByteSize(Bytes(bytes)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(Bytes(number)))
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }] })
    }
}

/// Lists names as messages do: `"a", "b" or "c"`.
macro_rules! listed {
    ($name:literal $last:literal) => { concat!("\"", $name, "\" or \"", $last, "\"") };
    ($name:literal $($more:literal)+) => { concat!("\"", $name, "\", ", listed!($($more)+)) };
}

/// Declares a closed set of names that only run files have.
macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)+ }) => {
        plimsoll_base::names! { $(#[$doc])* #[derive(JsonSchema)] $name { $($(#[$of])* $variant = $text,)+ } }
        impl Expecting for $name {
            const EXPECTING: &'static str = listed!($($text)+);
        }
    };
}

names!(
    /// Storage of the weights.
    ModelDtype {
        /// 16-bit storage, f32 arithmetic.
        Bf16 = "bf16",
        /// 32-bit storage.
        F32 = "f32",
    }
);

impl ModelDtype {
    pub const fn dtype(self) -> DType {
        match self {
            ModelDtype::Bf16 => DType::Bf16,
            ModelDtype::F32 => DType::F32,
        }
    }
}

names!(
    /// Storage of the AdamW states.
    OptimizerDtype {
        /// f32 states and an f32 master copy of the weights.
        F32 = "f32",
        /// bf16 states, stochastic rounding, no master copy.
        Bf16 = "bf16",
        /// 8-bit states with a scale a block, stochastic rounding, no master copy.
        Int8 = "int8",
    }
);

names!(
    /// The activations that the backward pass computes a second time instead of keeping.
    Recompute {
        /// Everything is kept.
        None = "none",
        /// Norms and activations are computed again.
        Cheap = "cheap",
        /// Each layer is computed again from its input.
        Layer = "layer",
        /// Each layer is computed again from its input, which waits in the device's host memory.
        Offload = "offload",
    }
);

names!(
    /// The part of a critic that is trained next to adapters of the actor.
    #[derive(Default)]
    CriticLearns {
        /// All its weights.
        #[default]
        Full = "full",
        /// An adapter of its own, and its head.
        Adapter = "adapter",
    }
);

impl CriticLearns {
    pub fn is_full(&self) -> bool {
        *self == CriticLearns::Full
    }
}

names!(
    /// The treatment of a prompt that is longer than the limit.
    Overlong {
        /// Stop before the run with the row's number.
        Error = "error",
        /// Leave the row out and count it.
        Drop = "drop",
        /// Keep its last tokens.
        TruncateLeft = "truncate-left",
    }
);

names!(
    /// The treatment of sequences that are longer than the model's positions.
    #[derive(Default)]
    Positions {
        /// Stop before the run.
        #[default]
        Error = "error",
        /// Sample and train at positions that the model was not trained for, with a note.
        Extend = "extend",
    }
);

impl Positions {
    pub(crate) fn is_error(&self) -> bool {
        *self == Positions::Error
    }
}

names!(
    /// The way out when the KV cache is full.
    OnFull {
        /// Admit a sequence only if its longest possible response fits.
        WorstCase = "worst-case",
        /// Admit early; evict the youngest sequence and recompute it later.
        Preempt = "preempt",
    }
);

names!(
    /// The call signature of a Python reward function.
    Signature {
        /// `f(prompts, completions, completion_ids, **columns)`.
        Trl = "trl",
        /// `compute_score(data_source, solution_str, ground_truth, extra_info)`.
        Verl = "verl",
        /// `reward_func(queries, prompts, labels)`.
        OpenRlhf = "openrlhf",
    }
);

impl Signature {
    pub const fn kind(self) -> plimsoll_reward::Signature {
        match self {
            Signature::Trl => plimsoll_reward::Signature::Trl,
            Signature::Verl => plimsoll_reward::Signature::Verl,
            Signature::OpenRlhf => plimsoll_reward::Signature::OpenRlhf,
        }
    }
}

names!(
    /// Whether a worker may reach a network.
    Network {
        /// Only processes of this machine.
        Deny = "deny",
        /// Everything that the user may reach.
        Allow = "allow",
    }
);

impl Network {
    pub const fn kind(self) -> plimsoll_reward::Network {
        match self {
            Network::Deny => plimsoll_reward::Network::Deny,
            Network::Allow => plimsoll_reward::Network::Allow,
        }
    }
}

names!(
    /// The effect of a failing reward function on the run.
    RewardFailure {
        /// The run stops with the named error.
        Stop = "stop",
        /// Its samples have no score from this reward, and are counted.
        None = "none",
    }
);

names!(
    /// Where the KL term goes.
    KlIn {
        /// A term of the loss.
        Loss = "loss",
        /// Taken from each token's reward.
        Reward = "reward",
    }
);

names!(
    /// The loss of a pair.
    LossType {
        /// DPO, with `label_smoothing` cDPO.
        Sigmoid = "sigmoid",
        /// IPO.
        Ipo = "ipo",
    }
);

/// Which groups a step keeps: those whose scores differ, or those whose mean score lies strictly between two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DynamicSampling {
    /// `false`: all.
    Off,
    /// `true`: those whose scores differ.
    Mixed,
    /// `[low, high]`.
    Mean([f64; 2]),
}

impl DynamicSampling {
    /// Returns the filter of groups; none keeps every group.
    pub const fn filter(self) -> Option<GroupFilter> {
        match self {
            DynamicSampling::Off => None,
            DynamicSampling::Mixed => Some(GroupFilter::Mixed),
            DynamicSampling::Mean([low, high]) => Some(GroupFilter::Mean { low, high }),
        }
    }
}

impl Serialize for DynamicSampling {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            DynamicSampling::Off => serializer.serialize_bool(false),
            DynamicSampling::Mixed => serializer.serialize_bool(true),
            DynamicSampling::Mean(bounds) => bounds.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DynamicSampling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DynamicSamplingVisitor)
    }
}

struct DynamicSamplingVisitor;

impl<'de> Visitor<'de> for DynamicSamplingVisitor {
    type Value = DynamicSampling;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or two numbers, such as [0.0, 1.0]")
    }

    fn visit_bool<E: de::Error>(self, on: bool) -> Result<DynamicSampling, E> {
        Ok(if on { DynamicSampling::Mixed } else { DynamicSampling::Off })
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<DynamicSampling, A::Error> {
        <[f64; 2]>::deserialize(de::value::SeqAccessDeserializer::new(list)).map(DynamicSampling::Mean)
    }
}

impl JsonSchema for DynamicSampling {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DynamicSampling".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let bounds = generator.subschema_for::<[f64; 2]>();
        json_schema!({ "anyOf": [{ "type": "boolean" }, bounds] })
    }
}

names!(
    /// Which tokens the reward of a turn is credited to.
    Credit {
        /// The sum of all turns, to the whole episode.
        Episode = "episode",
        /// To the turn that earned it and those before it.
        Turn = "turn",
        /// The same, after it was compared with the rewards of all turns of its group.
        Process = "process",
    }
);

names!(
    /// How the learning rate moves after warm-up.
    Schedule {
        /// It stays.
        Constant = "constant",
        /// Down to 0 at the last step, in a straight line.
        Linear = "linear",
        /// Down to 0 at the last step, along a cosine.
        Cosine = "cosine",
    }
);

names!(
    /// The order of a pass over the data.
    Curriculum {
        /// Shuffled or not, by `data.shuffle`.
        None = "none",
        /// From the highest pass rate to the lowest.
        EasyFirst = "easy-first",
        /// From the lowest pass rate to the highest.
        HardFirst = "hard-first",
    }
);

names!(
    /// The turns of a conversation that a supervised run learns.
    TrainOn {
        /// The last turn.
        Last = "last",
        /// Every turn of the assistant.
        Assistant = "assistant",
    }
);

names!(
    /// The treatment of a prompt that ends with the assistant's words.
    AnsweredPrompts {
        /// The file is refused.
        Error = "error",
        /// The assistant's last turn is left out.
        DropTurn = "drop-turn",
        /// The response goes on with it.
        Continue = "continue",
    }
);

names!(
    /// Where the run computes.
    RunDevice {
        /// The CPU.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }
);

names!(
    /// The dtype that a micro-batch's gradient is rounded to before it is added.
    #[derive(Default)]
    GradientWire {
        /// Nothing: it is added as it comes.
        #[default]
        F32 = "f32",
        /// Once, to the nearest bf16.
        Bf16 = "bf16",
    }
);

names!(
    /// How cards of different hosts exchange.
    Exchange {
        /// Over NVIDIA's library, which takes the fastest network that it finds.
        Nccl = "nccl",
        /// Over TCP, through the memory of the host.
        Sockets = "sockets",
    }
);

names!(
    /// The arrays that may live in pinned host memory instead of on the device.
    Offload {
        /// Optimizer states.
        Optimizer = "optimizer",
        /// Reference weights.
        Reference = "reference",
        /// Gradients.
        Gradients = "gradients",
    }
);

impl Expecting for Vec<Offload> {
    const EXPECTING: &'static str = "a list of \"optimizer\" and \"reference\"";
    const TAKES_TEXT: bool = false;
    const TAKES_LIST: bool = true;
}

names!(
    /// A tracker of experiments.
    Tracker {
        /// Weights & Biases.
        Wandb = "wandb",
        /// Trackio.
        Trackio = "trackio",
        /// MLflow.
        Mlflow = "mlflow",
        /// TensorBoard.
        Tensorboard = "tensorboard",
    }
);

names!(
    /// Whether trackers may send anything.
    TrackMode {
        /// To the services that the user's environment names.
        Online = "online",
        /// Nothing: they write files.
        Offline = "offline",
    }
);

/// Whether a worker may open a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerGpu {
    /// It is killed if it does.
    #[default]
    Deny,
    /// It may, for environments that render on one.
    Allow,
}
