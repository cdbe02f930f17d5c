//! Every region of a run, from its shape: the rows of the plan, which the arena binds.

use crate::disk::checkpoint_bytes;
use crate::facts::{SAMPLES_KEPT, environments_image_bytes, line_bytes_max};
use crate::hosts::Hosts;
use crate::roles::{PassShape, RoleShape, WeightsAre};
use crate::shape::{RunShape, Training};
use crate::step_arrays::{StepArrays, StepPart};
use plimsoll_arch::{ModelSpec, TensorRow, layer_rows};
use plimsoll_base::{Bytes, Phase, Result};
use plimsoll_config::{Auto, Exchange};
use plimsoll_device::{PORTION_BYTES, ScratchLimits};
use plimsoll_files::Head;
use plimsoll_memory::{Layout, Place, Pool};
use plimsoll_model::{Mode, PassLimits, adapters_layout, fp8_layout, rope, slots_layout};
use plimsoll_rollout::{Engine, Lengths, Live, OwnLogits, Samples, layout as engine_layout};
use plimsoll_train::Packer;

/// Process memory that no run changes: allocator slack, messages, metrics, run file. Measured at 1 to 2.5 MiB.
const HEAP_SLACK: Bytes = Bytes::mib(4);
/// Bytes per tensor of a checkpoint's header while it is written: declaration, offset and text. Measured at 1.27 kB.
const HEADER_BYTES: u64 = 1400;
/// Maximum tensors of a layer, excluding its experts'.
const TENSORS_OF_LAYER: u64 = 12;
const STATE_SETS: u64 = 3;
/// Touched stack of a thread: attention's backward pass takes 220 KiB.
const STACK: u64 = 256 << 10;

/// Kernel memory except page tables: stacks, open files, pipes, accounting. Measured at 0.2 to 0.7 MiB in a container.
const KERNEL_BASE: Bytes = Bytes::mib(1);
/// Kernel stack of a thread, with guard and records.
const KERNEL_STACK: u64 = 32 << 10;
/// A page table has 8 bytes per page of 4 KiB, if no huge pages are available.
const PAGES_OF_TABLE_BYTE: u64 = 4096 / 8;

/// Bytes of a token as text: 4 to 5 in natural text of common vocabularies.
const TEXT_BYTES_PER_TOKEN: u64 = 6;
/// Bytes of a prompt of a step besides its texts and tokens: item and group, the table of a row that a task makes, what
/// rewards read, and their allocations.
const PROMPT_BYTES: u64 = 1536;
/// Bytes of a sample of a step besides its texts and tokens: what rewards read, and scores.
const SAMPLE_BYTES: u64 = 512;
/// Five arrays of a step for a function that estimates advantages, in base 64: as values, as a line that doubles as it
/// grows, and its reply. 23 + 46 + 23 bytes, and the turns.
const ESTIMATOR_BYTES_PER_TOKEN: u64 = 104;
/// Five arrays with a number a sequence, likewise.
const ESTIMATOR_BYTES_PER_SEQUENCE: u64 = 512;
/// The supervisor of a run, excluding pages of the binary that it shares with the trainer. Measured at 1 MiB, and up to
/// 3.1 MiB of addresses that the loader writes into the binary, by how it was built.
const SUPERVISOR: Bytes = Bytes::mib(5);
/// The supervisor of one of several ranks, which talks to the others: measured at 2.1 MiB with 3 ranks.
const SUPERVISOR_OF_A_RANK: Bytes = Bytes::mib(6);
/// Slack of the buffers for ranks of other hosts, which do not fill their pages.
const PAGES_APART: u64 = 16 << 20;
/// One rank's part of the window through which ranks exchange numbers: `ranks::Group`.
const WINDOW_OF_A_RANK: u64 = 260 << 10;
/// Bytes per token of a sample that ranks exchange: id, log-probability and text, twice while messages are gathered or
/// read, and the text where it was graded.
const EXCHANGED_BYTES_PER_TOKEN: u64 = 2 * (8 + TEXT_BYTES_PER_TOKEN) + TEXT_BYTES_PER_TOKEN;
/// Bytes per token of a response that goes on: id, log-probability and the version that drew it, before a step, while
/// vectors grow by doubling, and after it; id and log-probability that the engine drew; and the id where it has ended
/// and its group has not.
const CARRIED_BYTES_PER_TOKEN: u64 = 3 * 16 + 8 + 4;
/// Bytes of a token of an agent's episode besides: its id in prompts, and what its server has of it and hands over.
const SERVED_BYTES_PER_TOKEN: u64 = 5 * 4 + 2 * 8;
/// Bytes of such a response besides its tokens.
const CARRIED_BYTES: usize = 512;
/// Bytes per token of a rollout that waits, besides its samples: prompt and text, and the ids of a prompt.
const AHEAD_BYTES_PER_TOKEN: u64 = TEXT_BYTES_PER_TOKEN + 4;
/// Scores and records of a sample of a rollout that waits.
const AHEAD_BYTES_PER_SAMPLE: u64 = 512;
/// Lengths, scores and ends of an exchanged sample, and its records once read.
const EXCHANGED_BYTES_PER_SAMPLE: u64 = 1 << 10;
/// Bytes per turn of an exchanged episode: first token, end, reward and text lengths in 28 bytes, twice while messages
/// are gathered, and its records once read.
const EXCHANGED_BYTES_PER_TURN: u64 = 2 * 28 + 96;
/// Pages that the kernel maps around pages read in another rank's regions.
const FAULT_AROUND: u64 = 1 << 20;

impl RunShape {
    /// Returns all regions of the run.
    ///
    /// Errors: `size-overflow`.
    pub fn layout(&self) -> Result<Layout> {
        let roles = self.roles();
        let mut layout = Layout::new();
        for role in &roles {
            layout.extend(role.states()?);
            if role.has_own_passes() {
                layout.extend(role.rope(&self.spec, self.positions)?);
            }
        }
        for (role, pass) in passes_of(roles.iter().filter(|role| role.has_own_passes())) {
            layout.extend(role.activations(pass)?);
            layout.extend(self.images_of_pass(pass)?);
        }
        layout.extend(rope::layout(&self.spec, self.positions, self.target.pool)?);
        layout.extend(self.scratch()?);
        if self.head == Head::Vocabulary {
            let (weights, target) = (self.weights, self.target);
            layout.extend(engine_layout(&self.spec, weights, target, &self.engine, self.truncates)?);
            let (mode, limits) = (Mode::Rollout { truncates: self.truncates }, self.engine.pass());
            if self.fp8 {
                layout.extend(fp8_layout(&self.spec, weights, target, mode, limits)?);
            }
            if let Some(lora) = self.lora {
                layout.extend(adapters_layout(
                    &self.spec, weights, target, mode, limits, lora.shape, lora.merge,
                )?);
                if lora.slots > 0 {
                    layout.extend(slots_layout(mode, limits.rows, target.pool)?);
                }
            }
        }
        layout.extend(self.image_regions()?);
        // The other roles have the first role's shape and share its phases.
        for (role, pass) in passes_of(roles.iter().filter(|role| !role.has_own_passes())) {
            layout.extend(role.activations(pass)?);
            layout.extend(self.images_of_pass(pass)?);
        }
        if self.samples_while_it_trains() {
            layout.side_by_side(Phase::Update);
        }
        let passes = if self.head == Head::Vocabulary { self.recorded } else { 0 };
        let beyond = self.row().beyond;
        let (ranks, layers, network) =
            (self.arenas() as u64, self.spec.layers.len(), self.network().is_some());
        let rows = beyond(ranks, layout.arena_bytes(), passes, layers, network);
        let libraries = self.row().has_own_memory().then_some(("device.libraries", self.held.card));
        for (name, bytes) in libraries.into_iter().chain(rows) {
            layout.outside(name, "device", self.target.pool, Place::Process, bytes);
        }
        self.host_rows(&mut layout);
        host_row(&mut layout, "serve.prefixes", "serve", Place::Heap, self.prefix_bytes());
        self.disk_rows(&mut layout);
        Ok(layout)
    }

    /// True if responses are drawn between the passes that train: all regions are then there at one time.
    pub fn samples_while_it_trains(&self) -> bool {
        self.lora.is_some_and(|lora| lora.trained_slots > 0)
    }

    /// Returns the phase in which responses are drawn.
    pub fn rollout_phase(&self) -> Phase {
        if self.samples_while_it_trains() { Phase::Update } else { Phase::Rollout }
    }

    /// Returns the bytes of the network library of ranks on different hosts; none if they do not use it.
    fn network(&self) -> Option<(Bytes, Bytes)> {
        let training = self.training.as_ref()?;
        let may = training.hosts.count > 1 && training.exchange != Auto::Value(Exchange::Sockets);
        self.row().network.filter(|_| may)
    }

    /// Returns the number of training ranks; 1 if nothing is trained.
    pub(crate) fn ranks(&self) -> usize {
        self.training.as_ref().map_or(1, |training| training.share.ranks)
    }

    /// Returns the number of ranks that have an arena of this layout.
    fn arenas(&self) -> usize {
        self.ranks() + self.training.as_ref().map_or(0, Training::rollout_ranks)
    }

    /// Returns the scratch of the model that needs the most: operations use it one at a time.
    fn scratch(&self) -> Result<Layout> {
        let mut most = self.scratch_of(&self.spec)?;
        let others = self.training.iter().flat_map(|training| {
            training.critic.iter().chain(training.teacher.iter().flat_map(|teacher| teacher.models.values()))
        });
        for other in others.chain(self.scoring.iter().flat_map(|scoring| scoring.models.values())) {
            let others = self.scratch_of(other)?;
            if others.sum(|_| true) > most.sum(|_| true) {
                most = others;
            }
        }
        Ok(most)
    }

    /// Returns the highest rank of an adapter; none without one.
    fn rank_max(&self) -> Option<u32> {
        let scoring = self.scoring.iter().flat_map(|scoring| scoring.adapters.values());
        self.lora.iter().chain(scoring).map(|lora| lora.shape.rank).max()
    }

    fn scratch_of(&self, spec: &ModelSpec) -> Result<Layout> {
        let limits = ScratchLimits {
            weights: self.weights,
            threads: self.target.threads,
            trains: self.training.is_some(),
            rank_max: self.rank_max(),
            decode_rows: self.engine.pass().head_rows,
            keys_max: self.engine.keys_max(),
            update: self.packs().map(|pass| (pass.rows, pass.segments)),
            adapters: self.lora.filter(|_| self.training.is_some()).map(|lora| lora.shape),
            ranks: self.ranks(),
            tower: self.tower_passes(),
        };
        (self.row().scratch)(spec, &limits)
    }

    /// Returns the limits of a training pass. Panics without training.
    pub fn pass(&self) -> PassLimits {
        let training = self.training.as_ref().expect("only a training run has training passes");
        self.masked(training.pack.pass_of(training.packing.heads))
    }

    /// Returns the limits of a training pass with masks for its head rows, if responses are drawn with masks.
    pub(crate) fn masked(&self, limits: PassLimits) -> PassLimits {
        let own = OwnLogits { masks: self.engine.own.masks, biases: 0 };
        PassLimits { own, ..limits }
    }

    /// Returns the limits of the largest pass over whole sequences; none if the run only samples.
    pub fn packs(&self) -> Option<PassLimits> {
        let scoring = || self.scoring.as_ref().map(|scoring| scoring.pack.pass());
        self.training.as_ref().map(|_| self.pass()).or_else(scoring)
    }

    /// Returns a step's per-token arrays.
    pub fn step_arrays(&self) -> StepArrays {
        let Some(training) = &self.training else { return StepArrays::default() };
        let (sequences, mut parts) = (training.sequences, training.parts());
        match self.head {
            Head::Vocabulary => StepArrays { sequences, response_tokens: training.response_tokens, parts },
            Head::Score => {
                // One score per sequence.
                parts.push(StepPart::Values);
                StepArrays { sequences, response_tokens: 1, parts }
            }
        }
    }

    /// Adds the maximum bytes of checkpoints: those kept, the best, and the one being written.
    fn disk_rows(&self, layout: &mut Layout) {
        let (Some(training), disk) = (&self.training, self.host.disk) else { return };
        let Some(keep) = disk.keep else { return };
        let one = checkpoint_bytes(self, training).0;
        let kept = one.saturating_mul(u64::from(keep)).min(disk.keep_bytes.map_or(u64::MAX, |n| n.max(one)));
        let files = kept.saturating_add(one.saturating_mul(1 + u64::from(disk.best)));
        layout.outside("checkpoint.files", "rl", Pool::Disk, Place::File, Bytes(files));
        layout.outside("rl.records", "rl", Pool::Disk, Place::File, disk.records);
    }

    /// Returns the text bytes of a step or of evaluation samples in flight, and of messages with workers and servers.
    fn text_bytes(&self) -> u64 {
        let tokens = |samples: usize, response: usize| {
            (samples as u64).saturating_mul((self.engine.prompt_tokens + response) as u64)
        };
        // The samples of a round, and those kept from earlier rounds.
        let step = self
            .training
            .as_ref()
            .map_or(0, |t| tokens(t.rollout_sequences() + t.held_sequences(), t.response_tokens));
        let graded = match self.rewards.threads {
            0 => 0,
            _ => tokens(self.engine.samples, self.engine.new_tokens),
        };
        let own_advantage = self.training.as_ref().is_some_and(|training| training.estimator > Bytes(0));
        let copies = if self.rewards.leaves_process() || own_advantage { 4 } else { 2 };
        step.max(graded).saturating_mul(TEXT_BYTES_PER_TOKEN * copies)
    }

    /// Returns the bytes of responses that an evaluation keeps, beyond the few that every run keeps of a step: in
    /// memory, and as the text of their file, whose buffer grows by doubling.
    fn kept_bytes(&self) -> u64 {
        let rows = self.host.rows_kept.saturating_sub(SAMPLES_KEPT) as u64;
        let tokens = (self.engine.prompt_tokens + self.engine.new_tokens) as u64;
        rows.saturating_mul(3 * line_bytes_max(tokens))
    }

    /// Returns the bytes of other ranks' memory that this rank reads, and of the window: resident in each reader. Per
    /// rank: gradients and weights of owned elements, a pass's row gradients, its shard of a reference, and in a save
    /// the optimizer's states. Cards read each other's memory without the host's. `None` for one rank.
    fn others_bytes(&self) -> Option<u64> {
        let training = self.training.as_ref()?;
        let (Training { share, hosts, .. }, ranks) = (training, self.arenas());
        if ranks == 1 {
            return None;
        }
        let of = |role: RoleShape| {
            // What is frozen and shared out, under adapters too.
            let frozen = match (role.weights_are, role.lora.is_some() || role.update.is_none()) {
                (WeightsAre::Spread(share), true) => share.elements(&role.table()) * role.weights.bytes(),
                _ => 0,
            };
            let Some(update) = role.update else { return Some(frozen) };
            let elements = share.elements(&role.trained());
            let master = if update.dtypes.has_master() { 4.0 } else { 0.0 };
            let states = (elements as f64 * (update.dtypes.moment_bytes() + master)) as u64;
            let rows = update.pass.limits.rows as u64 * (4 * u64::from(role.spec.hidden) + 4);
            Some(frozen + elements * (4 + role.weights.bytes()) + states + rows)
        };
        let in_place = self.row().reads_ranks_in_place;
        let others = if in_place && share.ranks > 1 {
            share.ranks as u64 * self.roles().into_iter().filter_map(of).sum::<u64>()
        } else if !in_place && hosts.count > 1 {
            // Cards of one host bypass host memory; data of other hosts passes in portions.
            let rows = |role: RoleShape| {
                Some(role.update?.pass.limits.rows as u64 * 4 * u64::from(role.spec.hidden))
            };
            let largest = self.roles().into_iter().filter_map(rows).max().unwrap_or(0);
            // Mapped twice, for writing and for reading: the system counts both.
            2 * PORTION_BYTES.max(largest) + PAGES_APART
        } else {
            0
        };
        // A rank that only samples copies what is trained; of another host it is mapped twice, as above.
        let copied = |role: &RoleShape| {
            let trained = if role.lora.is_some() { 4 } else { role.weights.bytes() };
            role.trained().elements * trained * if hosts.count > 1 { 2 } else { 1 }
        };
        let reads = training.rollout_ranks() > 0 && in_place;
        let copied = self.roles().first().filter(|_| reads).map_or(0, copied);
        Some(others.max(copied) + ranks as u64 * (WINDOW_OF_A_RANK + FAULT_AROUND))
    }

    /// Returns how many copies of exchanged samples there are.
    fn exchanged_copies(&self) -> u64 {
        let Some(training) = &self.training else { return 1 };
        // Two more between hosts: with data of the host's other ranks, and with that of other hosts.
        let between = if training.hosts.count > 1 { 2 } else { 0 };
        // From ranks that sample to those that train once more.
        1 + between + u64::from(training.rollout_ranks() > 0)
    }

    /// Returns the bytes of all ranks' samples, in transit and as they are read. Episodes include their prompts.
    fn exchanged_bytes(&self) -> u64 {
        let (prompt, turns) = if self.episodes.has_environment {
            (self.engine.prompt_tokens, self.episodes.turns_max as u64 * EXCHANGED_BYTES_PER_TURN)
        } else {
            (0, 0)
        };
        let tokens = (prompt + self.engine.new_tokens) as u64;
        let sample = tokens * EXCHANGED_BYTES_PER_TOKEN + EXCHANGED_BYTES_PER_SAMPLE + turns;
        (self.engine.samples as u64).saturating_mul(sample)
    }

    /// Returns the bytes of the largest state file's header while it is written, for models with experts: other models
    /// have a few hundred tensors, which the heap's slack covers. With adapters only their states are saved.
    fn header_bytes(&self) -> u64 {
        // Per expert, and per layer besides.
        let shape = self.lora.map(|lora| lora.shape);
        let each = |row: TensorRow| match shape {
            Some(shape) => 2 * u64::from(row.target.is_some_and(|target| shape.targets.contains(target))),
            None => 1,
        };
        let of_layer = |spec: &ModelSpec, layer| {
            let rows = layer_rows(spec, layer).into_iter();
            let of_experts: u64 = rows.map(|row| each(row) * u64::from(row.experts.unwrap_or(0))).sum();
            of_experts + if of_experts > 0 { TENSORS_OF_LAYER } else { 0 }
        };
        let tensors =
            |spec: &ModelSpec| (0..spec.layers.len()).map(|layer| of_layer(spec, layer)).sum::<u64>();
        let trained = self.training.as_ref();
        let specs = trained.into_iter().flat_map(|training| [Some(self.spec), training.critic]).flatten();
        specs.map(|spec| tensors(&spec)).max().unwrap_or(0) * STATE_SETS * HEADER_BYTES
    }

    /// Returns the bytes of a rollout's prompts and samples besides texts and arrays; also of those kept from earlier
    /// rounds.
    fn record_bytes(training: &Training) -> u64 {
        let of_step = training.prompts as u64 * PROMPT_BYTES + training.sequences as u64 * SAMPLE_BYTES;
        of_step.saturating_mul((1 + training.policy_lag as u64) << u32::from(training.holds_samples))
    }

    /// Returns the bytes of responses that go on in the next step: before a step, while it is made and after it, and
    /// what the engine drew on its way to them.
    fn carried_bytes(&self, training: &Training) -> u64 {
        let tokens = (self.engine.samples * training.response_tokens) as u64;
        if training.carried == 0 {
            0
        } else {
            let all = self.engine.prompt_tokens + self.engine.new_tokens;
            // The texts of episodes: before a step, while it is made and after it; and of agents, what their server
            // keeps of each and hands over.
            let (copies, served) = if self.episodes.plays_agents {
                (5, (self.engine.samples * all) as u64 * SERVED_BYTES_PER_TOKEN)
            } else {
                (3, 0)
            };
            let episodes = copies * self.episodes.host_bytes(self.engine.samples, all) + served;
            let prompts = (self.engine.samples * training.prompts).div_ceil(training.sequences.max(1)) as u64;
            let records = prompts * PROMPT_BYTES + (self.engine.samples * CARRIED_BYTES) as u64;
            tokens * CARRIED_BYTES_PER_TOKEN + records + episodes
        }
    }

    /// Returns the bytes of rollouts that wait for their steps: one more while a step draws its own, and the groups of
    /// one more while a step trains on them.
    fn ahead_bytes(&self, training: &Training) -> u64 {
        if training.ahead == 0 {
            return 0;
        }
        let tokens = (self.engine.prompt_tokens + training.response_tokens) as u64;
        let groups = training.sequences as u64 * (tokens * AHEAD_BYTES_PER_TOKEN + AHEAD_BYTES_PER_SAMPLE)
            + training.prompts as u64 * PROMPT_BYTES;
        let samples = Samples::bytes(training.sequences, training.response_tokens, 1);
        let waiting = training.ahead as u64 + 1;
        samples.saturating_mul(waiting).saturating_add(groups.saturating_mul(waiting + 1))
    }

    /// Returns the bytes of the table that finds what prompts of clients share of the KV blocks.
    fn prefix_bytes(&self) -> u64 {
        if self.host.clients.0 > 0 { Live::prefix_bytes(&self.engine) } else { 0 }
    }

    /// Returns the heap bytes of the engine, with those of masks, and of responses that choose among several adapters.
    fn engine_bytes(&self) -> u64 {
        let has_slots = self.lora.is_some_and(|lora| lora.slots > 0);
        let slots = if has_slots { Engine::adapter_bytes(&self.engine) } else { 0 };
        Engine::host_bytes(&self.engine) + Engine::mask_bytes(&self.engine, self.spec.vocab) + slots
    }

    /// Returns what the driver of a card holds.
    fn held_rows(&self) -> [(&'static str, Bytes); 3] {
        let held = &self.held;
        [("cuda.host", held.host), ("cuda.files", held.files), ("cuda.shared", held.shared)]
    }

    /// Adds the rows of what a training run has around its steps, which a server of tenants has not.
    fn run_rows(&self, layout: &mut Layout) {
        let training = self.training.as_ref().filter(|_| !self.samples_while_it_trains());
        let Some(training) = training else { return };
        training_rows(layout, self.arenas(), training.trackers);
        let requests = training.teacher.as_ref().map_or(0, |teacher| teacher.requests.0);
        host_row(layout, "teacher.requests", "rl", Place::Heap, requests);
        host_row(layout, "teacher.spans", "rl", Place::Heap, training.aligned_bytes());
        if training.estimator > Bytes(0) {
            host_row(layout, "advantage.arrays", "rl", Place::Heap, estimator_bytes(training));
            host_row(layout, "advantage.worker", "rl", Place::Workers, training.estimator.0);
        }
    }

    fn host_rows(&self, layout: &mut Layout) {
        let mut row = |name: &str, owner, place, bytes: u64| host_row(layout, name, owner, place, bytes);
        let host = &self.host;
        row("rollout.host", "rollout", Place::Heap, self.engine_bytes());
        row("rollout.drafts", "rollout", Place::Heap, Engine::draft_bytes(&self.engine));
        row("files.headers", "files", Place::Heap, self.header_bytes());
        let samples = Samples::bytes(self.engine.samples, self.engine.new_tokens, self.episodes.turns_max);
        row("rollout.samples", "rollout", Place::Heap, samples);
        if let Some(pass) = self.packs() {
            let sequences = self.training.as_ref().map_or(0, |training| training.sequences);
            row("train.packing", "train", Place::Heap, Packer::host_bytes(&pass, sequences));
        }
        // The scores of the responses that a reward model reads at once.
        let scores = if self.scoring.is_some() { 4 * self.engine.samples as u64 } else { 0 };
        let arrays = self.step_arrays();
        let step = if self.training.is_some() { arrays.bytes() } else { 0 };
        let records = self.training.as_ref().map_or(0, Self::record_bytes);
        row("rl.step", "rl", Place::Heap, step + scores + records);
        row("teacher.piece", "rl", Place::Heap, arrays.piece_bytes());
        if let Some(t) = &self.training {
            row("rl.held", "rl", Place::Heap, Samples::bytes(t.held_sequences(), t.response_tokens, 1));
            row("rl.carried", "rl", Place::Heap, self.carried_bytes(t));
            row("rl.ahead", "rl", Place::Heap, self.ahead_bytes(t));
        }
        if let Some(bytes) = self.others_bytes() {
            row("ranks.others", "ranks", Place::Process, bytes);
            let hosts = self.training.as_ref().map_or(Hosts::one(1), |training| training.hosts);
            let copies = self.exchanged_copies();
            let taught = arrays.exchanged_bytes(copies, hosts.ranks as u64);
            row("ranks.exchange", "ranks", Place::Heap, copies * self.exchanged_bytes() + taught);
            if hosts.count > 1 {
                row("ranks.sockets", "ranks", Place::Kernel, hosts.socket_bytes().0);
                row("ranks.staging", "ranks", Place::Process, self.row().staging.0);
                if let Some((_, bytes)) = self.network() {
                    row("cuda.nccl", "device", Place::Process, bytes.0);
                }
            }
            row("ranks.lengths", "rollout", Place::Heap, Lengths::bytes());
        }
        row("rl.text", "rl", Place::Heap, self.text_bytes());
        self.image_rows().into_iter().for_each(|(name, bytes)| row(name, "infer", Place::Heap, bytes));
        row("rl.data", "rl", Place::Heap, host.data.0);
        row("rl.kept", "rl", Place::Heap, self.kept_bytes());
        row("text.tokenizer", "text", Place::Process, host.tokenizer.0);
        row("serve.clients", "serve", Place::Heap, host.clients.0);
        row("rollout.schema", "infer", Place::Heap, host.schema.0);
        row("script.arrays", "rl", Place::Heap, host.script.0);
        row("files.staging", "files", Place::Heap, host.staging.0);
        process_rows_of(layout, host.image, self.target.threads);
        for (name, bytes) in self.held_rows() {
            host_row(layout, name, "device", Place::Process, bytes.0);
        }
        self.run_rows(layout);
        let mut row = |name: &str, owner, place, bytes: u64| host_row(layout, name, owner, place, bytes);
        row("reward.buffers", "reward", Place::Heap, self.rewards.buffers.0);
        row("reward.workers", "reward", Place::Workers, self.rewards.workers.0);
        let episodes = self.episodes.host_bytes(self.engine.samples, self.engine.context());
        row("environment.episodes", "rl", Place::Heap, episodes);
        row("reward.steps", "rl", Place::Heap, self.episodes.step_bytes(self.engine.samples));
        row("environment.workers", "rl", Place::Workers, self.episodes.workers.0);
        row("environment.containers", "rl", Place::Workers, self.episodes.containers(self.engine.samples));
        kernel_row(layout, self.target.threads + self.rewards.threads + self.episodes.threads + 1);
    }
}

/// Returns the passes of some roles, each mode once: roles of one mode have one shape and share its regions.
fn passes_of<'r>(roles: impl Iterator<Item = &'r RoleShape>) -> Vec<(RoleShape, PassShape)> {
    let mut passes: Vec<(RoleShape, PassShape)> = Vec::new();
    for role in roles {
        for pass in role.passes() {
            if passes.iter().all(|(_, seen)| seen.mode != pass.mode) {
                passes.push((*role, pass));
            }
        }
    }
    passes
}

/// Kinds of memory that the load line tracks: anonymous, file, shared, and the workers'.
pub const LOAD_LINE_KINDS: usize = 4;
/// Pages of the load line's status and readings.
const LOAD_LINE_PAGES: u64 = 24 << 10;

const fn load_line_bytes() -> u64 {
    plimsoll_memory::trend::bytes(LOAD_LINE_KINDS as u64) + LOAD_LINE_PAGES
}

/// Adds a host row, unless it is empty.
/// Returns the bytes of the arrays that a function which estimates advantages is sent.
fn estimator_bytes(training: &Training) -> u64 {
    let sequence = ESTIMATOR_BYTES_PER_TOKEN.saturating_mul(training.response_tokens as u64);
    let sequence = sequence.saturating_add(ESTIMATOR_BYTES_PER_SEQUENCE);
    sequence.saturating_mul(training.rollout_sequences() as u64)
}

fn host_row(layout: &mut Layout, name: &str, owner: &'static str, place: Place, bytes: u64) {
    if bytes > 0 {
        layout.outside(name, owner, Pool::Host, place, Bytes(bytes));
    }
}

/// Adds the rows of any process with `threads` threads; `image` is its binary.
pub fn process_rows_of(layout: &mut Layout, image: Bytes, threads: usize) {
    for (name, bytes) in [
        ("process.image", image.0),
        ("process.stacks", (threads as u64 + 2) * STACK),
        ("process.heap", HEAP_SLACK.0),
    ] {
        host_row(layout, name, "process", Place::Process, bytes);
    }
}

/// Adds the rows of the supervisor of a training run, or of one of its `ranks`, and of its trackers.
pub fn training_rows(layout: &mut Layout, ranks: usize, trackers: Bytes) {
    host_row(layout, "rl.watch", "rl", Place::Heap, load_line_bytes());
    let supervisor = if ranks == 1 { SUPERVISOR } else { SUPERVISOR_OF_A_RANK };
    host_row(layout, "process.supervisor", "process", Place::Workers, supervisor.0);
    host_row(layout, "track.worker", "run", Place::Workers, trackers.0);
}

/// Adds the kernel's memory for `threads` threads and for the host memory of all rows so far: the last host row.
pub fn kernel_row(layout: &mut Layout, threads: usize) {
    let host_rows = layout.regions.iter().filter(|r| r.pool == Pool::Host);
    // The planner refuses a sum beyond 64 bits, with an error message.
    let mapped = host_rows.fold(0u64, |sum, r| sum.saturating_add(r.bytes.0));
    let kernel = kernel_bytes(threads, Bytes(mapped));
    layout.outside("kernel.memory", "kernel", Pool::Host, Place::Kernel, kernel);
}

/// Adds the rows of a collector's process, excluding its threads' own: binary, stacks, allocator slack.
pub fn process_rows(layout: &mut Layout) {
    // The main thread, and the one that waits for signals.
    process_rows_of(layout, environments_image_bytes(), 0);
}

/// Returns the kernel's memory for `threads` threads and `mapped` bytes.
pub fn kernel_bytes(threads: usize, mapped: Bytes) -> Bytes {
    let stacks = (threads as u64).saturating_mul(KERNEL_STACK);
    Bytes(KERNEL_BASE.0 + stacks + mapped.0.div_ceil(PAGES_OF_TABLE_BYTE))
}
