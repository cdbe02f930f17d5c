//! The small actor-critic as a collector's policy. Each collector thread has one with its own weights, and takes over
//! newer weights, whole and with their version, before it acts.

use super::learner::{dist, log_std};
use super::network::{Network, StoredPolicy};
use super::normalise::Scales;
use super::spaces::{ActionWriter, ObservationReader};
use plimsoll_algo::action::Explore;
use plimsoll_base::{Bytes, DType, Error, Phase, PhaseSet, PolicyVersion, Result};
use plimsoll_collect::{ActionBatch, Beyond, Extras, ObservationBatch, Policy};
use plimsoll_device::OpenOptions;
use plimsoll_devices::{BoxedDevice, Opening, host, open};
use plimsoll_env::{Slot, Spec, seed};
use plimsoll_memory::{Arena, ArenaMap, Layout, Place, Pool};
use plimsoll_model::ParamTable;
use plimsoll_model::mlp::{MlpHead, MlpParams, MlpPass, MlpSpec, forward, forward_actor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The newest weights, for all policies of a run.
#[derive(Debug)]
pub struct Board {
    /// Version of the published weights, read without a lock.
    newest: AtomicU64,
    published: RwLock<Published>,
}

#[derive(Debug)]
struct Published {
    version: PolicyVersion,
    /// The flat weights in their memory order.
    weights: Vec<f32>,
    scales: Scales,
}

impl Board {
    /// Makes an empty board for weights of `elements` numbers.
    pub fn new(elements: usize) -> Arc<Board> {
        let published = Published {
            version: PolicyVersion::default(),
            weights: vec![0.0; elements],
            scales: Scales::default(),
        };
        Arc::new(Board { newest: AtomicU64::new(u64::MAX), published: RwLock::new(published) })
    }

    /// Publishes weights, which `write` fills in, with the scales of observations.
    pub fn publish(&self, version: PolicyVersion, scales: Scales, write: impl FnOnce(&mut [f32])) {
        let mut published = self.published.write().unwrap_or_else(PoisonError::into_inner);
        write(&mut published.weights);
        (published.version, published.scales) = (version, scales);
        self.newest.store(version.0, Ordering::Release);
    }
}

pub struct MlpPolicy {
    spec: MlpSpec,
    table: ParamTable,
    dev: BoxedDevice,
    arena: Arena,
    board: Arc<Board>,
    /// Version of the weights in the arena; none at first.
    version: Option<PolicyVersion>,
    scales: Scales,
    log_std: Vec<f32>,
    explore: Explore,
    run_seed: u64,
    reader: ObservationReader,
    writer: ActionWriter,
    /// True if the network has a critic.
    has_values: bool,
    /// [k, n], [k, A], [k] and the scores' remainder, for the largest group.
    inputs: Vec<f32>,
    outputs: Vec<f32>,
    action: Vec<f32>,
    kept: Vec<f64>,
}

/// Returns the arena of a policy that acts for at most `rows` environments at once.
///
/// Errors: `size-overflow`.
pub fn layout(spec: &MlpSpec, rows: usize) -> Result<Layout> {
    let mut layout = Layout::new();
    let elements = [spec.table(host().kind).elements];
    layout.arena("policy.weights", "model", Pool::Host, PhaseSet::RESIDENT, &elements, DType::F32)?;
    layout.extend(spec.layout("policy", host().kind, Pool::Host, PhaseSet::ROLLOUT, rows as u64, false)?);
    Ok(layout)
}

/// Returns the policies of `lanes` threads, all with the weights of a file.
///
/// Errors: `host-allocation-failed`, `size-overflow`; those of reading weights.
pub fn of_file(
    network: &Network,
    stored: &StoredPolicy,
    run_seed: u64,
    rows: usize,
    lanes: usize,
    explore: Explore,
) -> Result<Vec<MlpPolicy>> {
    let board = Board::new(network.spec.table(host().kind).elements as usize);
    let mut policies = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        let mut policy = MlpPolicy::new(network, board.clone(), run_seed, rows, explore)?;
        policy.has_values = stored.file.has_critic();
        policies.push(policy);
    }
    if let Some(MlpPolicy { spec, table, dev, arena, .. }) = policies.first_mut() {
        let params = MlpParams::bind(table, arena.split().0.buf("policy.weights"));
        stored.file.load(&**dev, spec, table, &params)?;
        let version = PolicyVersion::default();
        board.publish(version, stored.scales(), |weights| dev.read_f32(params.all, 0, weights));
    }
    Ok(policies)
}

/// Returns the plan rows, under `name`, of `lanes` policies for up to `rows` environments each, and of their board.
///
/// Errors: `size-overflow`.
pub(crate) fn plan_rows(name: &str, spec: &MlpSpec, rows: usize, lanes: usize) -> Result<Layout> {
    let mut layout_of_all = Layout::new();
    let arena = ArenaMap::new(&layout(spec, rows)?, 0).used_bytes();
    let elements = spec.table(host().kind).elements;
    for (what, owner, bytes) in [
        ("arenas", "model", lanes as u64 * arena),
        ("host", "rl", lanes as u64 * host_bytes(spec, rows)),
        ("board", "rl", 4 * elements),
    ] {
        layout_of_all.outside(&format!("{name}.{what}"), owner, Pool::Host, Place::Heap, Bytes(bytes));
    }
    Ok(layout_of_all)
}

fn host_bytes(spec: &MlpSpec, rows: usize) -> u64 {
    let (n, outputs) = (spec.inputs as u64, u64::from(spec.head.outputs()));
    rows as u64 * 4 * (n + outputs) + outputs * 8 * 3
}

impl MlpPolicy {
    /// Makes a policy for groups of at most `rows` environments.
    ///
    /// Errors: `host-allocation-failed`, `size-overflow`.
    pub fn new(
        network: &Network,
        board: Arc<Board>,
        run_seed: u64,
        rows: usize,
        explore: Explore,
    ) -> Result<MlpPolicy> {
        let Network { spec, reader, writer } = network.clone();
        // One thread: the collector's own, of which there are several.
        let opening = Opening::alone(host().kind, 1, OpenOptions::default());
        let (dev, arena) = open(&layout(&spec, rows)?, &opening)?;
        let outputs = spec.head.outputs() as usize;
        Ok(MlpPolicy {
            table: spec.table(host().kind),
            dev,
            arena,
            board,
            version: None,
            scales: Scales::default(),
            log_std: Vec::new(),
            explore,
            run_seed,
            reader,
            writer,
            has_values: true,
            inputs: vec![0.0; rows * spec.inputs as usize],
            outputs: vec![0.0; rows * outputs],
            action: vec![0.0; spec.head.action_dims()],
            kept: vec![0.0; 2 * outputs],
            spec,
        })
    }

    /// Takes over the board's weights if they are newer.
    fn take_newest(&mut self) -> PolicyVersion {
        let newest = PolicyVersion(self.board.newest.load(Ordering::Acquire));
        if self.version != Some(newest) {
            let published = self.board.published.read().unwrap_or_else(PoisonError::into_inner);
            let params = MlpParams::bind(&self.table, self.arena.split().0.buf("policy.weights"));
            self.dev.write_f32(params.all, 0, &published.weights);
            self.log_std = log_std(&*self.dev, &params);
            self.scales = published.scales.clone();
            self.version = Some(published.version);
        }
        self.version.expect("weights were taken over")
    }
}

impl Policy for MlpPolicy {
    fn check(&self, spec: &Spec) -> Result<()> {
        let reader = ObservationReader::of(&Slot::of(&spec.observation)?)?;
        let writer = ActionWriter::of(&Slot::of(&spec.action)?)?;
        if (reader.width(), writer.head()) == (self.spec.inputs as usize, &self.spec.head) {
            return Ok(());
        }
        let message = format!(
            "{} shows {} numbers and takes {:?}, the policy reads {} and gives {:?}",
            spec.id,
            reader.width(),
            writer.head(),
            self.spec.inputs,
            self.spec.head
        );
        Err(Error::new("policy-space-mismatch", message).hint("give the policy of this environment"))
    }

    fn extras(&self) -> Extras {
        Extras { logprobs: true, values: self.has_values }
    }

    fn beyond(&self) -> Beyond {
        match self.spec.head {
            MlpHead::Gaussian(_) => Beyond::Clip,
            MlpHead::Categorical(_) => Beyond::Refuse,
        }
    }

    fn act(&mut self, seen: &ObservationBatch<'_>, chosen: &mut ActionBatch<'_>) -> PolicyVersion {
        let version = self.take_newest();
        let (rows, n) = (seen.episodes.len(), self.spec.inputs as usize);
        let outputs = self.spec.head.outputs() as usize;
        let slots = seen.observations.chunks_exact(seen.slot.bytes);
        for (slot, row) in slots.zip(self.inputs.chunks_exact_mut(n)) {
            self.reader.read(slot, row);
            self.scales.apply(row);
        }
        let (resident, mut overlay) = self.arena.split();
        let params = MlpParams::bind(&self.table, resident.buf("policy.weights"));
        let phase = overlay.enter(Phase::Rollout);
        let pass = MlpPass::bind("policy", |name| phase.get(name));
        self.dev.write_f32(pass.input, 0, &self.inputs[..rows * n]);
        // A policy without a critic is never asked for values, nor is one that is evaluated.
        if chosen.values.is_empty() {
            forward_actor(&*self.dev, &params, self.spec.activation, &pass, rows);
        } else {
            forward(&*self.dev, &params, self.spec.activation, &pass, rows);
            self.dev.read_f32(pass.values(rows), 0, chosen.values);
        }
        self.dev.read_f32(pass.outputs(rows, outputs), 0, &mut self.outputs[..rows * outputs]);
        let dist = dist(&self.spec.head, &self.log_std);
        for (row, slot) in chosen.actions.chunks_exact_mut(chosen.slot.bytes).enumerate() {
            let of = &self.outputs[row * outputs..][..outputs];
            let (env, episode, step) = (seen.first_env + row as u32, seen.episodes[row], seen.steps[row]);
            let noise = |block| seed::action_noise(self.run_seed, env, episode, step, block);
            dist.draw(self.explore, of, noise, &mut self.action);
            self.writer.write(&self.action, slot);
            if let Some(logprob) = chosen.logprobs.get_mut(row) {
                *logprob = dist.score(of, &self.action, &mut self.kept).logp;
            }
        }
        version
    }
}
