//! The devices that tests run on: the instruction paths of this processor, or with PLIMSOLL_TEST_DEVICE=cuda a card.

use plimsoll_arch::{LoraShape, LoraTargets, ModelSpec};
use plimsoll_base::{Bytes, DType};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_cuda::CudaDevice;
use plimsoll_device::{Device, Layouts, OpenOptions, ScratchLimits, TowerPasses};
use plimsoll_memory::{Arena, Layout, Pool};
use plimsoll_model::{PassLimits, Target};
use std::path::PathBuf;

/// The tiny models with numbers of transformers.
pub const GOLDEN: [&str; 38] = [
    "llama",
    "llama3_rope",
    "qwen2",
    "qwen3",
    "mistral",
    "qwen3_yarn",
    "qwen2_yarn",
    "mistral_window",
    "qwen2_window",
    "smollm3",
    "olmo2",
    "olmo3",
    "gemma2",
    "gemma3",
    "granite",
    "llama_bias",
    "phi3",
    "phi4_mini",
    "phi4_mini_long",
    "qwen3_moe",
    "qwen3_moe_mixed",
    "qwen3_5",
    "qwen3_5_wide",
    "qwen3_5_moe",
    "qwen3_next",
    "deepseek_v2",
    "deepseek_v3",
    "moonlight",
    "glm4_moe_lite",
    "glm4_moe",
    "glm4_moe_groups",
    "ministral3",
    "ministral3_window",
    "gemma4",
    "gemma4_own",
    "gemma4_moe",
    "gemma4_unified",
    "gpt_oss",
];

/// Positions of a tiny model's rotary table: at most `most`; `phi4_mini` was generated with its short factors, for 64.
#[allow(dead_code)] // Each crate's tests use their part.
pub fn positions_of(model: &str, most: usize) -> usize {
    if model.ends_with("phi4_mini") { 64 } else { most }
}

/// True if PLIMSOLL_TEST_CHECKED=1 asks for a card's checked build.
fn is_checked() -> bool {
    std::env::var("PLIMSOLL_TEST_CHECKED").is_ok_and(|value| value == "1")
}

/// Where a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    Cpu(Isa),
    Cuda,
}

impl Machine {
    /// The fastest path of this processor, or the card.
    pub fn detect() -> Machine {
        match std::env::var("PLIMSOLL_TEST_DEVICE").as_deref() {
            Ok("cuda") => Machine::Cuda,
            _ => Machine::Cpu(Isa::detect()),
        }
    }

    /// One instruction path of this processor; the card all the same where tests run on one.
    pub fn path(isa: Isa) -> Machine {
        if Machine::detect() == Machine::Cuda { Machine::Cuda } else { Machine::Cpu(isa) }
    }

    /// All instruction paths of this processor, or the card.
    pub fn all() -> Vec<Machine> {
        match Machine::detect() {
            Machine::Cuda => vec![Machine::Cuda],
            _ => Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Machine::Cpu).collect(),
        }
    }

    pub fn kind(self) -> &'static Layouts {
        if self == Machine::Cuda { &plimsoll_cuda::LAYOUTS } else { &plimsoll_cpu::LAYOUTS }
    }

    pub fn target(self, threads: usize) -> Target {
        let pool = if self == Machine::Cuda { Pool::Device } else { Pool::Host };
        Target { kind: self.kind(), pool, threads }
    }

    /// The device's own region, for updates of `pass` and decode passes of up to 64 rows.
    pub fn scratch(self, spec: &ModelSpec, dtype: DType, threads: usize, pass: PassLimits) -> Layout {
        self.scratch_and(spec, dtype, threads, pass, None)
    }

    /// `scratch` of a model whose tower is trained too.
    pub fn scratch_and(
        self,
        spec: &ModelSpec,
        dtype: DType,
        threads: usize,
        pass: PassLimits,
        tower: Option<TowerPasses>,
    ) -> Layout {
        let update = Some((pass.rows, pass.segments));
        let adapters = Some(LoraShape { rank: 32, targets: LoraTargets::ALL });
        let (weights, trains, rank_max) = (dtype, true, None);
        let (decode_rows, keys_max, ranks) = (64, 2048, 1);
        let limits = ScratchLimits {
            weights,
            threads,
            trains,
            rank_max,
            decode_rows,
            keys_max,
            update,
            adapters,
            ranks,
            tower,
        };
        let of = match self {
            Machine::Cpu(_) => CpuDevice::scratch(spec, &limits),
            Machine::Cuda => CudaDevice::scratch_layout(spec, &limits),
        };
        of.unwrap()
    }

    /// A device for an arena that has the region of `scratch`.
    pub fn open(self, arena: &mut Arena, threads: usize) -> AnyDevice {
        let (bytes, offloaded) = (Bytes(arena.map().used_bytes()), Bytes(arena.map().offloaded_bytes()));
        let scratch = arena.split().0.buf("device.scratch");
        match self {
            Machine::Cpu(isa) => {
                let mut dev = CpuDevice::new(bytes, threads, isa).unwrap();
                dev.take_offloaded(offloaded).unwrap();
                dev.bind_scratch(scratch);
                AnyDevice::Cpu(dev)
            }
            Machine::Cuda => {
                let mut dev =
                    CudaDevice::new(bytes, OpenOptions { checked: is_checked(), profile: false }).unwrap();
                dev.take_offloaded(offloaded.max(Bytes(256))).unwrap();
                dev.bind_scratch(scratch);
                AnyDevice::Cuda(dev)
            }
        }
    }
}

/// A device of either kind.
#[allow(clippy::large_enum_variant)] // One a test.
pub enum AnyDevice {
    Cpu(CpuDevice),
    Cuda(CudaDevice),
}

impl AnyDevice {
    pub fn as_dyn(&self) -> &dyn Device {
        match self {
            AnyDevice::Cpu(dev) => dev,
            AnyDevice::Cuda(dev) => dev,
        }
    }

    /// The CPU's, for what only it can do.
    pub fn cpu(&mut self) -> &mut CpuDevice {
        match self {
            AnyDevice::Cpu(dev) => dev,
            AnyDevice::Cuda(_) => panic!("a test of the CPU's device"),
        }
    }
}

/// The folder of a tiny architecture, from any crate's tests. Cargo says at run time where a crate lies; a test binary
/// that was moved elsewhere reads the same variable.
pub fn golden_dir(name: &str) -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    PathBuf::from(here).join("../model/tests/golden").join(name)
}
