//! A decoder, its optimizer and the update's pass in an arena of its own, for the tests of train and rollout.
//!
//! It owns the arena and the device; a test says which model, which limits, and what else lies in the arena.

#![allow(dead_code)] // Each test file uses its part.

use plimsoll_arch::{LoraShape, ModelSpec, Quantization};
use plimsoll_base::{Bytes, DType, Phase, PhaseSet, Result};
use plimsoll_device::{Device, Matrix, fp8_dtype};
use plimsoll_files::OpenModel;
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Overlay, Resident};
use plimsoll_model::{
    Activations, Adapters, AdaptersFrom, CodeBufs, Coding, Decoder, Derivatives, Fp8Bufs, Fp8Table,
    Fp8Weights, Merged, Mode, ParamTable, Params, Part, Pass, PassLimits, Recompute, Target,
    activations_layout, adapters_layout, backward, fp8_layout, head, layers, load, load_adapters, rope,
};
use plimsoll_train::{
    Optimizer, OptimizerDType, Packer, Sequence, Share, StateDTypes, Summing, UpdateOptions, optimizer_layout,
};

#[path = "../../../model/tests/common/machine.rs"]
mod machine;
#[path = "../../../files/tests/it/common.rs"]
mod made;

#[allow(unused_imports, reason = "not every test compares with transformers")]
pub use machine::GOLDEN;
pub use machine::{AnyDevice, Machine, golden_dir};

/// The source of a model that is made for a test: a GGUF file whose matrices are in all encodings.
pub const MIXED: &str = "gguf:mixed";

/// Holds what an arena is made for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A golden model's name, or a source with a colon.
    pub source: String,
    /// Another shape for a random model.
    pub spec: Option<ModelSpec>,
    pub dtype: DType,
    pub machine: Machine,
    pub threads: usize,
    pub recompute: Recompute,
    /// Limits of the update's passes.
    pub pass: PassLimits,
    /// Rows of the rotary table.
    pub positions: usize,
    /// Bytes between regions.
    pub guard: u64,
    /// Storage of AdamW's moments.
    pub optimizer: OptimizerDType,
    /// True if the states are offloaded.
    pub offload: bool,
    /// Adapters with random numbers, and their scale.
    pub lora: Option<(LoraShape, f32)>,
    /// True if the weights have the adapters in them.
    pub merge: bool,
    /// How products are stored, if not in full.
    pub quantize: Option<Quantization>,
    /// True if products are of numbers of eight bits.
    pub fp8: bool,
}

impl Setup {
    /// The fastest path, one thread, everything kept.
    pub fn new(source: &str, dtype: DType, pass: PassLimits) -> Setup {
        let (machine, recompute) = (Machine::detect(), Recompute::None);
        Setup {
            source: source.to_string(),
            spec: None,
            dtype,
            machine,
            threads: 1,
            recompute,
            pass,
            positions: machine::positions_of(source, 1024),
            guard: 0,
            optimizer: OptimizerDType::F32,
            offload: false,
            lora: None,
            merge: false,
            quantize: None,
            fp8: false,
        }
    }

    pub fn target(&self) -> Target {
        self.machine.target(self.threads)
    }

    /// The regions that a pass takes.
    pub fn activations(&self, spec: &ModelSpec, mode: Mode, limits: PassLimits) -> Layout {
        let mut layout = activations_layout(spec, self.dtype, self.target(), mode, limits).unwrap();
        if let Some((lora, _)) = self.lora {
            layout.extend(
                adapters_layout(spec, self.dtype, self.target(), mode, limits, lora, self.merge).unwrap(),
            );
        }
        if self.fp8 {
            layout.extend(fp8_layout(spec, self.dtype, self.target(), mode, limits).unwrap());
        }
        layout
    }

    /// The table of its weights.
    fn table(&self, model: &OpenModel) -> ParamTable {
        let table = ParamTable::new(&model.spec, self.machine.kind(), self.dtype);
        match self.quantize {
            None => table,
            Some(how) => table.coded(&Coding::of(how, || model.encodings.expect("a GGUF file"))),
        }
    }

    /// The weights over their regions.
    fn params<'a>(&self, spec: &ModelSpec, table: &ParamTable, resident: Resident<'a>) -> Params<'a> {
        let all = resident.buf("actor.weights");
        if self.quantize.is_none() {
            return Params::bind(spec, table, self.dtype, all);
        }
        let [words, widened] = ["actor.codes", "actor.widened"].map(|name| resident.buf(name));
        let scales = resident.get("actor.scales");
        Params::bind_quantized(spec, table, self.dtype, all, CodeBufs { words, scales, widened })
    }

    pub fn adapters(&self, spec: &ModelSpec) -> Option<ParamTable> {
        let (lora, _) = self.lora?;
        Some(ParamTable::adapters(spec, self.machine.kind(), self.dtype, lora))
    }

    /// The table of merged weights.
    fn merged(&self, spec: &ModelSpec) -> Option<ParamTable> {
        let (lora, _) = self.lora.filter(|_| self.merge)?;
        Some(ParamTable::merged(spec, self.machine.kind(), self.dtype, lora))
    }

    /// The table of rounded weights.
    fn rounded(&self, spec: &ModelSpec) -> Option<Fp8Table> {
        self.fp8.then(|| Fp8Table::new(spec, self.machine.kind(), self.dtype))
    }

    /// The model, of which only headers are read.
    pub fn open(&self) -> OpenModel {
        // The folder is gone after the test, and the file stays open.
        let folder = tempfile::tempdir().unwrap();
        let source = match self.source.as_str() {
            MIXED => {
                let path = folder.path().join("model.gguf");
                std::fs::write(&path, made::coded_gguf(&made::MIXED)).unwrap();
                path.to_str().expect("temporary folders are UTF-8").to_string()
            }
            source if source.contains(':') => self.source.clone(),
            _ => golden_dir(&self.source).to_str().expect("paths of this repository are UTF-8").to_string(),
        };
        let mut model = OpenModel::open(&source, None, false).unwrap();
        model.spec = self.spec.unwrap_or(model.spec);
        model
    }
}

/// Everything static that a test needs.
pub struct Harness {
    pub setup: Setup,
    pub model: OpenModel,
    pub spec: ModelSpec,
    pub table: ParamTable,
    pub arena: Arena,
    pub dev: AnyDevice,
}

/// Handles into a harness.
pub struct Parts<'a> {
    pub dev: &'a dyn Device,
    pub setup: &'a Setup,
    pub table: &'a ParamTable,
    pub decoder: Decoder<'a>,
    pub grads: Params<'a>,
    pub resident: Resident<'a>,
    pub overlay: Overlay<'a>,
}

impl Harness {
    /// An arena with weights, optimizer, scoring, update and `extra` regions; the weights are loaded.
    pub fn new(setup: Setup, extra: Layout) -> Harness {
        let mut harness = Harness::empty(setup, extra);
        harness.load();
        harness
    }

    /// The same with nothing in it yet.
    pub fn empty(setup: Setup, extra: Layout) -> Harness {
        let model = setup.open();
        let (spec, dtype) = (model.spec, setup.dtype);
        let table = setup.table(&model);
        let mut layout = Layout::new();
        let (shape, pool) = ([table.elements], setup.target().pool);
        layout.arena("actor.weights", "test", pool, PhaseSet::RESIDENT, &shape, dtype).unwrap();
        if setup.quantize.is_some() {
            let mut add = |name, elements: u64, dtype| {
                layout.arena(name, "test", pool, PhaseSet::RESIDENT, &[elements], dtype).unwrap();
            };
            add("actor.codes", table.codes.word, DType::U32);
            if table.codes.scale > 0 {
                add("actor.scales", table.codes.scale, DType::F32);
            }
            add("actor.widened", table.widened_elements(dtype), dtype);
        }
        let states = StateDTypes { optimizer: setup.optimizer, ..dtypes(dtype) };
        // Adapters are what learns over codes; these states have the shape of all weights anyway.
        let all = ParamTable::new(&spec, setup.machine.kind(), dtype);
        let states = optimizer_layout("actor", &all, states, pool, Phase::Update, setup.offload, 1).unwrap();
        layout.extend(resident_gradients(states));
        layout.extend(rope::layout(&spec, setup.positions, pool).unwrap());
        layout.extend(setup.machine.scratch(&spec, dtype, setup.threads, setup.pass));
        for mode in [Mode::Score, Mode::Update(setup.recompute)] {
            layout.extend(setup.activations(&spec, mode, setup.pass));
        }
        if let Some(table) = setup.adapters(&spec) {
            layout.arena("lora", "test", pool, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
            let states =
                optimizer_layout("lora", &table, dtypes(dtype), pool, Phase::Update, false, 1).unwrap();
            layout.extend(resident_gradients(states));
        }
        if let Some(table) = setup.merged(&spec) {
            layout.arena("merged", "test", pool, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
        }
        if let Some(table) = setup.rounded(&spec) {
            let of_codes = fp8_dtype(setup.machine.kind(), dtype);
            layout.arena("fp8", "test", pool, PhaseSet::RESIDENT, &[table.codes], of_codes).unwrap();
            if table.scales > 0 {
                let shape = [table.scales];
                layout.arena("fp8_scales", "test", pool, PhaseSet::RESIDENT, &shape, DType::F32).unwrap();
            }
        }
        layout.extend(extra);
        let mut arena = Arena::new(ArenaMap::new(&layout, setup.guard));
        let dev = setup.machine.open(&mut arena, setup.threads);
        Harness { setup, model, spec, table, arena, dev }
    }

    /// Results come back a pass late; a card does so by itself.
    pub fn run_ahead(&mut self) {
        if let AnyDevice::Cpu(dev) = &mut self.dev {
            dev.run_ahead();
        }
    }

    /// Fills the weights and the rotary table.
    pub fn load(&mut self) {
        let (resident, _) = self.arena.split();
        let params = self.setup.params(&self.spec, &self.table, resident);
        load(self.dev.as_dyn(), &self.model, &self.table, &params, 1, Bytes(4 << 20)).unwrap();
        rope::fill(self.dev.as_dyn(), &self.spec, resident.buf("rope.table"));
        if let Some(table) = self.setup.adapters(&self.spec) {
            let (dev, layout, all) = (self.dev.as_dyn(), params.embed.layout, resident.buf("lora"));
            load_adapters(dev, &table, layout, &[all], AdaptersFrom::Random(1), Bytes(4 << 20)).unwrap();
        }
        self.merge();
        self.round();
    }

    /// Rounds the weights again, if products are of such: after they have changed.
    pub fn round(&mut self) {
        let (resident, _) = self.arena.split();
        if let Some(rounded) = Harness::bind_rounded(&self.setup, &self.spec, resident) {
            rounded.update(self.dev.as_dyn(), &self.setup.params(&self.spec, &self.table, resident));
        }
    }

    fn bind_rounded<'a>(setup: &Setup, spec: &ModelSpec, resident: Resident<'a>) -> Option<Fp8Weights<'a>> {
        let table = setup.rounded(spec)?;
        let bufs = Fp8Bufs { codes: resident.buf("fp8"), scales: resident.get("fp8_scales") };
        Some(Fp8Weights::bind(spec, &table, setup.machine.kind(), setup.dtype, bufs))
    }

    /// Computes merged weights again, if there are any: after the adapters have changed.
    pub fn merge(&mut self) {
        let (resident, _) = self.arena.split();
        let Some((adapters, merged)) = Harness::bind_merged(&self.setup, &self.spec, resident) else {
            return;
        };
        let params = self.setup.params(&self.spec, &self.table, resident);
        merged.update(self.dev.as_dyn(), &params, &adapters);
    }

    fn bind_merged<'a>(
        setup: &Setup,
        spec: &ModelSpec,
        resident: Resident<'a>,
    ) -> Option<(Adapters<'a>, Merged<'a>)> {
        let table = setup.merged(spec)?;
        let merged = Merged::bind(spec, &table, setup.dtype, resident.buf("merged"));
        Some((Harness::bind_adapters(setup, spec, resident.buf("lora"))?, merged))
    }

    /// The adapters over a buffer of their elements.
    fn bind_adapters<'a>(setup: &Setup, spec: &ModelSpec, all: Buf<'a>) -> Option<Adapters<'a>> {
        let ((lora, scale), table) = (setup.lora?, setup.adapters(spec)?);
        Some(Adapters::bind(spec, &table, setup.dtype, lora, scale, all))
    }

    pub fn parts(&mut self) -> Parts<'_> {
        let (resident, overlay) = self.arena.split();
        let dtype = self.setup.dtype;
        let params = self.setup.params(&self.spec, &self.table, resident);
        let all = ParamTable::new(&self.spec, self.table.device, dtype);
        let grads = Params::bind(&self.spec, &all, dtype, resident.buf("actor.grads"));
        let adapters =
            resident.get("lora").and_then(|all| Harness::bind_adapters(&self.setup, &self.spec, all));
        let params = match Harness::bind_merged(&self.setup, &self.spec, resident) {
            Some((adapters, merged)) => params.with_merged(&adapters, &merged),
            None => params.with_adapters(adapters.as_ref()),
        };
        let params = match Harness::bind_rounded(&self.setup, &self.spec, resident) {
            Some(rounded) => params.with_fp8(&rounded),
            None => params,
        };
        let decoder = Decoder { spec: self.spec, dtype, params, rope: resident.buf("rope.table") };
        Parts {
            dev: self.dev.as_dyn(),
            setup: &self.setup,
            table: &self.table,
            decoder,
            grads,
            resident,
            overlay,
        }
    }

    /// Log-probabilities of every response token by the update's forward pass, in as many micro-batches as it takes.
    ///
    /// Errors: those of packing.
    pub fn logprobs(
        &mut self,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
    ) -> Result<(Vec<Vec<f32>>, usize)> {
        let mut parts = self.parts();
        let mut out: Vec<Vec<f32>> = sequences.iter().map(|s| vec![f32::NAN; s.response.len()]).collect();
        let passes = parts.each_pass(sequences, |parts, pass, heads, _| {
            head(parts.dev, parts.decoder, pass, inv_temperature);
            for (row, logprob) in heads.iter().zip(read(parts.dev, pass.head_out().logprobs)) {
                let slot = &mut out[row.sequence as usize][row.token as usize];
                assert!(slot.is_nan(), "a token was predicted twice");
                *slot = logprob;
            }
        })?;
        assert!(out.iter().flatten().all(|l| l.is_finite()), "every token has one log-probability");
        Ok((out, passes))
    }

    /// Gradients of sum(weight * logprob) + sum(weight * entropy), flat as they are stored, and that sum.
    ///
    /// `weight` of (sequence, token): derivatives by the log-probability and by the entropy.
    pub fn gradients(
        &mut self,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        weight: impl Fn(usize, usize) -> (f32, f32),
    ) -> (Vec<f32>, f64) {
        let mut parts = self.parts();
        parts.dev.zero(parts.grads.all);
        let mut sum = 0.0;
        parts
            .each_pass(sequences, |parts, pass, heads, grads| {
                head(parts.dev, parts.decoder, pass, inv_temperature);
                let out = pass.head_out();
                let (logprobs, entropy) = (read(parts.dev, out.logprobs), read(parts.dev, out.entropy));
                let (mut dl, mut de) = (Vec::new(), Vec::new());
                for (i, row) in heads.iter().enumerate() {
                    let (l, e) = weight(row.sequence as usize, row.token as usize);
                    sum += f64::from(l) * f64::from(logprobs[i]) + f64::from(e) * f64::from(entropy[i]);
                    dl.push(l);
                    de.push(e);
                }
                let of =
                    Derivatives::Vocabulary { inv_temperature, logprobs: &dl, entropy: &de, divergence: &[] };
                backward(parts.dev, parts.decoder, grads, true, pass, of);
            })
            .unwrap();
        (read(parts.dev, parts.grads.all), sum)
    }
}

impl Harness {
    /// A first AdamW step from the gradients that `gradients` left.
    pub fn first_update(&mut self, lr: f32) {
        let parts = self.parts();
        let (params, grads) = (&parts.decoder.params, parts.grads.all);
        let mut optimizer =
            Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
        let how = UpdateOptions {
            muon: None,
            lr,
            betas: (0.9, 0.95),
            epsilon: 1e-8,
            weight_decay: 0.0,
            grad_clip: 1.0,
            seed: 0,
        };
        let norm = optimizer.grad_norm(parts.dev, grads);
        optimizer.update(parts.dev, params.all, grads, None, how, norm);
    }
}

/// Holds what `each_pass` leaves free to use while a pass is open.
pub struct Open<'x, 'a> {
    pub dev: &'x dyn Device,
    pub decoder: &'x Decoder<'a>,
}

impl<'a> Parts<'a> {
    /// Packs, and hands over each pass of the update after its layers.
    pub fn each_pass(
        &mut self,
        sequences: &[Sequence<'_>],
        mut then: impl FnMut(&Open<'_, 'a>, &Pass<'_>, &[plimsoll_train::HeadRow], &Params<'a>),
    ) -> Result<usize> {
        let phase = self.overlay.enter(Phase::Update);
        let acts = Activations::bind(&phase, Mode::Update(self.setup.recompute), self.setup.pass);
        let mut packer = Packer::new(self.setup.pass, 0);
        let (mut first, mut passes) = (0, 0);
        while first < sequences.len() {
            let batch = packer.pack(sequences, first)?;
            let pass = Pass::upload(self.dev, acts, batch.index);
            layers(self.dev, &self.decoder, &pass);
            then(&Open { dev: self.dev, decoder: &self.decoder }, &pass, batch.head, &self.grads);
            (first, passes) = (batch.sequences.end, passes + 1);
        }
        Ok(passes)
    }
}

/// f32 states, gradients of f32.
pub fn dtypes(weights: DType) -> StateDTypes {
    StateDTypes { weights, grads: DType::F32, summing: Summing::default(), optimizer: OptimizerDType::F32 }
}

/// The layout with its gradients resident, so that a test may read them when the phase is over.
pub fn resident_gradients(mut layout: Layout) -> Layout {
    let gradients = layout.regions.iter_mut().filter(|region| region.name.ends_with(".grads"));
    gradients.for_each(|region| region.phases = PhaseSet::RESIDENT);
    layout
}

/// A buffer as f32.
pub fn read(dev: &dyn Device, buf: Buf<'_>) -> Vec<f32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    out
}

/// Returns where a file has element `i` of a part with rows of `width`: in rows of another order, or transposed.
pub fn place_in_file(part: &Part, width: usize, i: usize) -> usize {
    let (row, column) = (i / width, i % width);
    if part.is_transposed {
        let n = part.shape[2] as usize;
        return (row / n * width + column) * n + row % n;
    }
    part.groups.map_or(row, |groups| groups.run(row as u32).0 as usize) * width + column
}

/// Each tensor that is trained under its Hugging Face name, row-major, out of a flat buffer in the order of `table`.
pub fn tensors(dev: &dyn Device, table: &ParamTable, all: &Params<'_>) -> Vec<(String, Vec<f32>)> {
    let mut out = Vec::new();
    for param in table.params.iter().filter(|param| !param.is_fixed()) {
        let buf = all.all.slice(param.offset as usize, param.elements as usize);
        let width = param.k.max(1) as usize;
        let mut values = vec![0.0; param.n as usize * width];
        if param.is_vector() {
            dev.read_f32(buf, 0, &mut values)
        } else {
            dev.read_rows(Matrix::new(buf, param.n as usize, width, all.embed.layout), 0, &mut values)
        }
        let mut at = 0;
        for part in &param.parts {
            let n = part.rows as usize * width;
            let mut of_file = vec![0.0; n];
            for (i, x) in values[at..at + n].iter().enumerate() {
                of_file[place_in_file(part, width, i)] = *x;
            }
            out.push((part.name.clone(), of_file));
            at += n;
        }
    }
    out
}

/// The reference numbers of a golden model.
pub struct Reference(Vec<u8>);

impl Reference {
    pub fn open(model: &str) -> Reference {
        Reference(std::fs::read(golden_dir(model).join("reference.safetensors")).unwrap())
    }

    pub fn f32s(&self, name: &str) -> Vec<f32> {
        let file = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        let data = file.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let file = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        let data = file.tensor(name).unwrap().data();
        data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
    }
}

/// Reproducible numbers below `n`.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed << 32)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 += 1;
        let bits = plimsoll_base::rng::philox(5, plimsoll_base::rng::Stream::Bench, self.0, 0);
        plimsoll_base::rng::below(bits[0], bits[1], n as u64) as usize
    }

    pub fn tokens(&mut self, len: usize, vocab: u32) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab as usize) as u32).collect()
    }
}

/// True if both hold the same bits.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
