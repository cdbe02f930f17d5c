//! TRL's memory under accelerate: plain data parallel, ZeRO, or FSDP; an engine in the same process, or on a server.
//!
//! Legend: P parameters, N ranks, T cards of an engine.

use crate::options::{Change, Options, contradiction, set};
use crate::plan::hazards;
use crate::plan::ledger::{Holder, Ledger, Phase};
use crate::plan::limits::{Limits, Version};
use crate::plan::model::{ModelOf, Shape, named_model};
use crate::rules::deepspeed::Zero;
use crate::rules::torch::{Logits, Pass, Process, file_pages, kv_cache, nccl, process};
use crate::rules::vllm::Engine;
use plimsoll_base::Result;

pub(super) const CHANGES: &[Change] = &[
    ("fewer sequences a pass, more accumulation", |options| {
        let rows = options.count_or("per_device_train_batch_size", 8).ok()?;
        let steps = options.count_or("gradient_accumulation_steps", 1).ok()?;
        (rows > 1).then(|| {
            vec![
                ("per_device_train_batch_size", Some((rows / 2).to_string())),
                ("gradient_accumulation_steps", Some((steps * 2).to_string())),
            ]
        })
    }),
    ("a loss that never makes the logits whole", |options| options.turn("use_liger_kernel", false, true)),
    ("the engine asleep while the trainer works", |options| {
        let colocated = options.flag_or("use_vllm", false) == Ok(true)
            && options.text_or("vllm_mode", "colocate") == Ok("colocate");
        if colocated { options.turn("vllm_enable_sleep_mode", false, true) } else { None }
    }),
    ("recompute activations", |options| options.turn("gradient_checkpointing", true, true)),
    ("weights in bf16", |options| {
        (options.text_or("dtype", "float32") == Ok("float32")).then(|| set("dtype", "bfloat16"))
    }),
    ("states sharded by ZeRO-2", |options| {
        let shards = options.has("accelerate_config") || options.has("deepspeed") || options.has("fsdp");
        (!shards).then(|| set("accelerate_config", "zero2"))
    }),
    ("weights sharded by ZeRO-3", |options| {
        let now = options.text("accelerate_config").ok()?.unwrap_or_default().contains("zero3");
        (!now).then(|| set("accelerate_config", "zero3"))
    }),
    ("no reference model", |options| (options.number_or("beta", 0.0).ok()? > 0.0).then(|| set("beta", 0))),
];

const TRAINER: &str =
    "TRL f2cd57710 (1.10.0) trl/trainer/utils.py:1123-1152 (dtype float32 unless set), grpo_config.py";

#[derive(Clone, Copy, PartialEq)]
enum Sharding {
    None,
    Zero(u64),
    Fsdp,
}

fn sharding(options: &Options, ledger: &mut Ledger) -> Result<Sharding> {
    let config = options.text("accelerate_config")?.unwrap_or_default().to_ascii_lowercase();
    let deepspeed = options.text("deepspeed")?.unwrap_or_default().to_ascii_lowercase();
    for stage in [1, 2, 3] {
        let named = |text: &str| {
            text.contains(&format!("zero{stage}"))
                || text.contains(&format!("zero_stage_{stage}"))
                || text.contains(&format!("z{stage}"))
        };
        if named(&config) || named(&deepspeed) {
            return Ok(Sharding::Zero(stage));
        }
    }
    if config.contains("fsdp") || options.text("fsdp")?.is_some_and(|text| !text.is_empty()) {
        return Ok(Sharding::Fsdp);
    }
    if !deepspeed.is_empty() || (!config.is_empty() && !config.contains("gpu")) {
        let name = if deepspeed.is_empty() { config } else { deepspeed };
        ledger.note(format!("{name}: its stage is not in its name; planned as ZeRO-2. Say --set accelerate_config=zero3 if it is another"));
        return Ok(Sharding::Zero(2));
    }
    Ok(Sharding::None)
}

struct Run<'a> {
    options: &'a Options,
    limits: &'a Limits,
    ledger: Ledger,
    trainer: Holder,
    shape: Shape,
    ranks: u64,
    sharding: Sharding,
    /// Bytes per weight: bf16 with DeepSpeed, else float32 unless a dtype is named.
    element: u128,
    /// True if adapters are trained instead of the weights.
    adapters: bool,
}

pub(super) fn rules(options: &Options, _: Version, limits: &Limits, models: &ModelOf<'_>) -> Result<Ledger> {
    let name = "model_name_or_path";
    let shape = Shape::policy(named_model(options, name, name, models)?);
    if options.has("generation_batch_size") && options.has("steps_per_generation") {
        return Err(contradiction(
            "generation_batch_size and steps_per_generation are both given",
            "give one of them: each follows from the other",
        ));
    }
    let ranks = match options.count("num_processes")? {
        Some(ranks) => ranks,
        None => limits.cards()?,
    };
    let per_node = limits.gpus.as_ref().map_or(ranks, |known| known.value);
    let (mut ledger, group) = Ledger::of_one_group("trainer, engine", ranks, per_node);
    let sharding = sharding(options, &mut ledger)?;
    let adapters = options.flag_or("use_peft", false)?
        || options.has("peft_config")
        || options.has("peft_config.peft_type");
    if options.flag_or("load_in_4bit", false)? || options.flag_or("load_in_8bit", false)? {
        ledger.note("load_in_4bit and load_in_8bit: weights are planned in their dtype, which is more");
    }
    // DeepSpeed holds bf16, whatever dtype the file has.
    let element = match sharding {
        Sharding::Zero(_) => 2,
        _ => match options.text_or("dtype", "float32")? {
            "bfloat16" | "bf16" | "float16" => 2,
            _ => 4,
        },
    };
    let trainer = Holder { role: "trainer", group };
    let mut run = Run { options, limits, ledger, trainer, shape, ranks, sharding, element, adapters };
    run.trained()?;
    if options.number_or("beta", 0.0)? > 0.0 {
        run.reference();
    }
    run.engine()?;
    run.save();
    run.ledger.goes_through(|phase| phase != Phase::Critic);
    Ok(run.ledger)
}

impl Run<'_> {
    /// Returns true if a rank holds only a share of the weights, so whole ones must be gathered.
    fn gathers(&self) -> bool {
        matches!(self.sharding, Sharding::Zero(3) | Sharding::Fsdp)
    }

    /// Returns the longest prompt and completion together.
    fn tokens(&self) -> Result<u64> {
        let prompt = self.options.count_or("max_prompt_length", 512)?;
        Ok(prompt.saturating_add(self.options.count_or("max_completion_length", 512)?))
    }

    fn trained(&mut self) -> Result<()> {
        self.ledger.add(process(self.trainer, Process::Trainer));
        self.ledger.add(nccl(self.trainer, self.ranks));
        let params = u128::from(self.shape.params);
        match self.sharding {
            Sharding::Zero(stage) => {
                let zero = Zero {
                    stage,
                    ranks: self.ranks,
                    offload: false,
                    pin: true,
                    pin_master: true,
                    grad_bytes: 2,
                    accumulates: self.options.count_or("gradient_accumulation_steps", 1)? > 1,
                    sleep: false,
                };
                self.ledger.add(if self.adapters {
                    zero.weights(self.trainer, &self.shape)
                } else {
                    zero.training(self.trainer, &self.shape, &[Phase::Update])
                });
            }
            Sharding::None => self.plain(params),
            Sharding::Fsdp => self.states(params.div_ceil(u128::from(self.ranks))),
        }
        if self.adapters {
            self.ledger.note(
                "use_peft, peft_config: gradients and states of the adapters, a few per cent of the weights, are left out",
            );
        }
        self.passes()?;
        self.ledger.models.push(("trainer", self.shape.params));
        Ok(())
    }

    /// Adds weights, gradients and Adam's states of `owned` parameters, all in the weights' type.
    fn states(&mut self, owned: u128) {
        let row = |name, each: u128, phases| {
            self.trainer.card(name, each * owned, phases, format!("{each} B x {owned}"), TRAINER)
        };
        let element = self.element;
        let mut items = vec![row("weights", element, Phase::ALL)];
        if !self.adapters {
            items.push(row("gradients", element, &[Phase::Update]));
            items.push(row("Adam m and v", 2 * element, Phase::RUNNING));
        }
        self.ledger.add(items);
    }

    /// Adds plain data parallelism: every rank holds everything.
    fn plain(&mut self, params: u128) {
        self.states(params);
        let row = |name, each: u128, source| {
            self.trainer.card(name, each * params, &[Phase::Update], format!("{each} B x P"), source)
        };
        if self.element == 4 {
            let source = "torch.autocast caches bf16 copies of f32 weights within a pass";
            self.ledger.add([row("autocast copies", 2, source)]);
        }
        if self.ranks > 1 && !self.adapters {
            let source =
                "torch 2.6.0 DistributedDataParallel, gradient_as_bucket_view=False: next to the gradients";
            self.ledger.add([row("reduce buckets", self.element, source)]);
        }
    }

    /// Adds logits of completions only, whole unless Liger's loss is on.
    fn passes(&mut self) -> Result<()> {
        let options = self.options;
        let rows = options.count_or("per_device_train_batch_size", 8)?;
        let fused = options.flag_or("use_liger_kernel", false)?;
        let pass = Pass {
            holder: self.trainer,
            phases: &[Phase::Update],
            tokens: rows.saturating_mul(self.tokens()?),
            trains: true,
            recompute: options.flag_or("gradient_checkpointing", true)?,
            logits: Logits::NONE,
        };
        let forward = Pass { phases: &[Phase::Experience], trains: false, ..pass };
        self.ledger.add(pass.items(&self.shape));
        self.ledger.add(forward.items(&self.shape));
        if !fused {
            let source =
                "TRL f2cd57710 trl/trainer/grpo_trainer.py:1440-1520, logits_to_keep + 1 of each row";
            let tokens =
                rows.saturating_mul(options.count_or("max_completion_length", 512)?.saturating_add(1));
            let trained = Pass { tokens, logits: Logits::trained(source), ..pass };
            let scored = Pass { tokens, logits: Logits::scored(source), ..forward };
            self.ledger.add([trained, scored].iter().filter_map(|pass| pass.logits(&self.shape)));
        }
        Ok(())
    }

    fn reference(&mut self) {
        if self.adapters {
            self.ledger
                .note("beta with use_peft: the reference is the model without its adapter, no second copy");
            return;
        }
        let (each, params) = (self.element, u128::from(self.shape.params));
        let owned = if self.gathers() { params.div_ceil(u128::from(self.ranks)) } else { params };
        let holder = Holder { role: "reference", ..self.trainer };
        let formula = format!("{each} B x {owned}");
        self.ledger.add([holder.card("weights", each * owned, Phase::ALL, formula, TRAINER)]);
        self.ledger.models.push(("reference", self.shape.params));
    }

    fn engine(&mut self) -> Result<()> {
        let (options, shape) = (self.options, self.shape);
        let longest = options.count("vllm_max_model_length")?.map_or_else(|| self.tokens(), Ok)?;
        if !options.flag_or("use_vllm", false)? {
            let rows = options.count_or("per_device_train_batch_size", 8)?;
            let rows = rows.saturating_mul(options.count_or("gradient_accumulation_steps", 1)?);
            let source = "transformers generate(): keys and values of the rank's whole batch, bf16";
            self.ledger.add([kv_cache(self.trainer, (rows, "rows"), longest, &shape, source)]);
            return Ok(());
        }
        if options.text_or("vllm_mode", "colocate")? == "server" {
            self.ledger.note(
                "vllm_mode = server: the server's cards are not among these; its own command plans its share",
            );
            return Ok(());
        }
        let sleeps = options.flag_or("vllm_enable_sleep_mode", false)?;
        let engine = Engine {
            group: self.trainer.group,
            tensor_parallel: options.count_or("vllm_tensor_parallel_size", 1)?,
            share: options.share_or("vllm_gpu_memory_utilization", 0.3)?,
            card: self.limits.card()?,
            sleeps,
            // Sleep level 2: weights come back with the sync.
            host_copy: false,
            wakes_in_two: false,
            swap_gib: 0.0,
            own_process: false,
        };
        self.ledger.add(engine.items(&shape));
        self.ledger.hazards.extend(engine.hazard(&shape, longest));
        if sleeps {
            self.ledger.hazards.extend(hazards::sleep_mode(self.limits));
        }
        let words = "a vLLM engine in the trainer's process";
        self.ledger.hazards.push(hazards::illegal_access(words, sleeps));
        Ok(())
    }

    fn save(&mut self) {
        let each = self.element;
        let whole = each * u128::from(self.shape.params);
        let (name, bytes, formula, source) = if self.gathers() {
            (
                "gathered model",
                whole,
                format!("{each} B x P on rank 0"),
                "accelerate: zero3_save_16bit_model gathers the whole dictionary on rank 0",
            )
        } else {
            (
                "shard that is written",
                whole.min(5_000_000_000),
                "min(model, 5 GB) as bytes on rank 0".into(),
                "transformers save_pretrained, max_shard_size 5GB",
            )
        };
        let item = self.trainer.host(name, bytes, &[Phase::Save], formula, source).first();
        // A checkpoint of the Trainer holds weights and states.
        self.ledger.add([item, file_pages(self.trainer, whole)]);
    }
}
