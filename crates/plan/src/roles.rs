//! The models of a run as roles: the name of each, whether it is trained, and which passes it makes.
//!
//! Actor, reference, critic, teacher and reward model are values of one type, in the order in which they are laid out.
//! To add a role, add a name, a value of `RunShape::roles` and, unless its model is the run's own, a row that opens it.

use crate::lora::{CriticAdapter, Lora};
use crate::role_name::RoleName;
use crate::shape::{RunShape, Scoring, Training};
use crate::tables::{self, Key, Which};
use crate::teacher::TeacherShape;
use plimsoll_arch::{ModelSpec, Quantization};
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_device::fp8_dtype;
use plimsoll_files::{Head, is_written_whole};
use plimsoll_memory::{Layout, Pool};
use plimsoll_model::{
    Coding, Fp8Table, Mode, ParamTable, PassLimits, SlotTable, Target, activations_layout, adapters_layout,
    fp8_layout, rope, streamed_layout,
};
use plimsoll_train::{
    Cut, Heads, LandingShape, OptimizerDType, Packing, Share, Spread, StateDTypes, Summing, landing_layout,
    muon_layout, optimizer_layout,
};
use std::rc::Rc;

/// One kind of pass of a role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassShape {
    /// The activations that it keeps, and its phase.
    pub mode: Mode,
    /// How sequences are packed into micro-batches.
    pub packing: Packing,
    pub limits: PassLimits,
    /// Tokens that its head is over, the first ones of the model's vocabulary; all of them if none.
    pub vocab: Option<u32>,
}

impl PassShape {
    /// Returns the pass with `tokens` listed of each head row.
    fn listing(self, tokens: usize) -> PassShape {
        PassShape { limits: PassLimits { listed: tokens, ..self.limits }, ..self }
    }

    /// Returns the pass over the tokens of a student that learns a divergence from its head, else over all.
    fn teaching(self, student: &ModelSpec) -> PassShape {
        let teaches = self.limits.listed + self.limits.taught > 0;
        PassShape { vocab: teaches.then_some(student.vocab), ..self }
    }

    /// Returns the pass with rows of `width` elements that a teacher's head reads.
    fn taught(self, width: usize) -> PassShape {
        PassShape { limits: PassLimits { taught: width, ..self.limits }, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateShape {
    pub pass: PassShape,
    pub share: Share,
    pub spread: Spread,
    pub cut: Cut,
    pub dtypes: StateDTypes,
    /// True if the optimizer's states are in the device's host memory.
    pub offloads_states: bool,
    /// Coefficient of the load balancing loss (MoE models only).
    pub balance_coef: f64,
    /// True if Muon updates the matrices of layers.
    pub muon: bool,
}

impl UpdateShape {
    /// Returns the update of adapters, whose gradients and states are f32 and stay on the device.
    fn of_adapters(self) -> UpdateShape {
        let (grads, optimizer) = (DType::F32, OptimizerDType::F32);
        UpdateShape {
            dtypes: StateDTypes { grads, summing: Summing::default(), optimizer, ..self.dtypes },
            offloads_states: false,
            muon: false,
            ..self
        }
    }
}

impl TeacherShape {
    /// Returns the scoring pass of a role with the run's own weights. Of passes that roles share, all list tokens if
    /// the teacher's do; each keeps its own rows only.
    fn own_pass(&self, pass: PassShape, name: RoleName) -> PassShape {
        let lists = if self.has_own_weights { self.lists } else { 0 };
        pass.listing(lists).taught(self.kept_by(name))
    }

    /// Returns the pass of the student's update, which reads the teacher's rows.
    fn update_pass(&self, pass: PassShape) -> PassShape {
        pass.listing(self.lists).taught(self.rows.map_or(0, |rows| rows.width))
    }
}

/// Where a role's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsAre {
    /// In the arena.
    Resident,
    /// In the device's host memory.
    Offloaded,
    /// Sharded over all ranks.
    Spread(Share),
    /// The first role's frozen weights, without its adapters; a critic has its own head.
    FirstRoles,
    /// The same where all ranks share them out: they stream through slots of the role's own.
    FirstRolesParts,
}

/// Returns the name of what belongs to one of a role's trained adapters.
pub fn trained_slot(role: &str, slot: usize) -> String {
    format!("{role}.slot{slot}")
}

/// Returns the regions of trained adapters side by side: the gradients of one request, and for each adapter those that
/// wait for its step, and its states.
fn of_slots(
    (name, slots): (&str, u32),
    table: &ParamTable,
    pool: Pool,
    states: impl Fn(&str) -> Result<Layout>,
) -> Result<Layout> {
    let mut layout = states(name)?;
    layout.regions.retain(|region| !region.phases.is_resident());
    for slot in 0..slots as usize {
        let of = trained_slot(name, slot);
        let mut own = states(&of)?;
        own.regions.retain(|region| region.phases.is_resident());
        layout.extend(own);
        let sums = format!("{of}.sums");
        layout.arena(&sums, "train", pool, PhaseSet::RESIDENT, &[table.elements], DType::F32)?;
    }
    Ok(layout)
}

/// A role in the plan: its model, its weights and its passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleShape {
    pub name: RoleName,
    /// The decoder's body.
    pub spec: ModelSpec,
    pub head: Head,
    pub weights: DType,
    pub target: Target,
    pub weights_are: WeightsAre,
    /// The adapters that it trains, or comes with, on top of frozen weights.
    pub lora: Option<Lora>,
    /// How its products are quantized, if at all.
    pub quantize: Option<Coding>,
    /// True if it computes its products with numbers of eight bits.
    pub fp8: bool,
    /// Forward passes over whole sequences.
    pub score: Option<PassShape>,
    /// Updates; a role without them is frozen.
    pub update: Option<UpdateShape>,
    /// True if its files are those of the whole model of text and images, whose text it is.
    pub is_whole: bool,
}

impl RoleShape {
    /// Returns the key of one of its tables: everything that it depends on.
    fn key(&self, which: Which, head: Head) -> Key {
        let of_weights = which == Which::Weights;
        Key {
            which,
            spec: self.spec,
            head,
            device: self.target.kind,
            weights: self.weights,
            lora: self.lora.filter(|_| !of_weights),
            quantize: self.quantize.filter(|_| of_weights),
        }
    }

    /// Returns the role's parameter table.
    pub fn table(&self) -> Rc<ParamTable> {
        // The base of the first role's adapters is a language model.
        let is_of_first = matches!(self.weights_are, WeightsAre::FirstRoles | WeightsAre::FirstRolesParts);
        let head = if is_of_first { Head::Vocabulary } else { self.head };
        let new = match head {
            Head::Vocabulary => ParamTable::new,
            Head::Score => ParamTable::critic,
        };
        tables::of(self.key(Which::Weights, head), || {
            let table = new(&self.spec, self.target.kind, self.weights);
            match &self.quantize {
                Some(coding) => table.coded(coding),
                None => table,
            }
        })
    }

    /// Returns the table of its adapters, including a head trained with them and those of a tower.
    pub fn adapters(&self) -> Option<Rc<ParamTable>> {
        let lora = self.lora?;
        let new = match self.head {
            Head::Vocabulary => ParamTable::adapters,
            Head::Score => ParamTable::adapters_and_score,
        };
        let (kind, weights) = (self.target.kind, self.weights);
        let make = || {
            let table = new(&self.spec, kind, weights, lora.shape);
            match &lora.tower {
                Some(tower) => table.with_tower_adapters(tower, kind, weights, lora.shape.rank),
                None => table,
            }
        };
        Some(tables::of(self.key(Which::Adapters, self.head), make))
    }

    /// Returns the table of the weights with its adapters merged in.
    pub fn merged(&self) -> Option<Rc<ParamTable>> {
        let lora = self.lora.filter(|lora| lora.merge)?;
        let make = || ParamTable::merged(&self.spec, self.target.kind, self.weights, lora.shape);
        Some(tables::of(self.key(Which::Merged, self.head), make))
    }

    /// Returns the table of its rounded weights, if it computes with such.
    pub fn rounded(&self) -> Option<Fp8Table> {
        self.fp8.then(|| Fp8Table::new(&self.spec, self.target.kind, self.weights))
    }

    /// Returns the table of what it trains: its adapters, or all its parameters.
    pub fn trained(&self) -> Rc<ParamTable> {
        self.adapters().unwrap_or_else(|| self.table())
    }

    /// Returns the elements of its adapters, and of the factors of several.
    fn adapter_regions(&self) -> Vec<(&'static str, u64, DType)> {
        let slots = self.lora.map_or(0, |lora| u64::from(lora.slots));
        match self.adapters() {
            None => Vec::new(),
            Some(table) if slots == 0 => vec![("adapters", table.elements, self.weights)],
            Some(table) => vec![
                ("adapters", slots * SlotTable::stride_of(&table), self.weights),
                ("adapter_scales", slots, DType::F32),
            ],
        }
    }

    /// Returns the regions of its weights, gradients and optimizer states.
    ///
    /// Errors: `size-overflow`.
    pub(crate) fn states(&self) -> Result<Layout> {
        let (name, pool) = (self.name.name(), self.target.pool);
        let mut layout = Layout::new();
        let resident = |layout: &mut Layout, what: &str, elements: u64, dtype: DType| {
            let region = format!("{name}.{what}");
            layout.arena(&region, "model", pool, PhaseSet::RESIDENT, &[elements], dtype)
        };
        match self.weights_are {
            WeightsAre::FirstRoles => {}
            WeightsAre::Offloaded | WeightsAre::Spread(_) | WeightsAre::FirstRolesParts => {
                let table = self.table();
                match self.weights_are {
                    WeightsAre::FirstRolesParts => {}
                    WeightsAre::Spread(share) => {
                        resident(&mut layout, "weights", share.elements(&table), self.weights)?;
                    }
                    _ => {
                        let region = format!("offload.{name}.weights");
                        layout.offloaded(&region, "model", &[table.elements], self.weights)?;
                    }
                }
                let phases: Vec<Phase> = self.phases().collect();
                layout.extend(streamed_layout(name, &table, self.weights, pool, PhaseSet::of(&phases))?);
                if let Some(phase) = self.whole_in() {
                    let region = format!("{name}.whole");
                    let phases = PhaseSet::of(&[phase]);
                    layout.arena(&region, "model", pool, phases, &[table.elements], self.weights)?;
                }
            }
            WeightsAre::Resident => {
                let table = self.table();
                resident(&mut layout, "weights", table.elements, self.weights)?;
                if self.quantize.is_some() {
                    resident(&mut layout, "codes", table.codes.word, DType::U32)?;
                    if table.codes.scale > 0 {
                        resident(&mut layout, "scales", table.codes.scale, DType::F32)?;
                    }
                    resident(&mut layout, "widened", table.widened_elements(self.weights), self.weights)?;
                }
            }
        }
        for (what, elements, dtype) in self.adapter_regions() {
            resident(&mut layout, what, elements, dtype)?;
        }
        if let Some(merged) = self.merged() {
            resident(&mut layout, "merged", merged.elements, self.weights)?;
        }
        if let Some(rounded) = self.rounded().filter(|_| self.weights_are == WeightsAre::Resident) {
            resident(&mut layout, "fp8", rounded.codes, fp8_dtype(self.target.kind, self.weights))?;
            if rounded.scales > 0 {
                resident(&mut layout, "fp8_scales", rounded.scales, DType::F32)?;
            }
        }
        if let Some(update) = &self.update {
            layout.extend(self.update_states(update)?);
        }
        Ok(layout)
    }

    /// Returns the regions of an update: gradients, states, and what exchanges them between ranks.
    fn update_states(&self, update: &UpdateShape) -> Result<Layout> {
        let (name, pool) = (self.name.name(), self.target.pool);
        let mut layout = Layout::new();
        let UpdateShape { pass, share, spread, dtypes, offloads_states, muon, .. } = *update;
        let phase = pass.mode.phase();
        let table = self.trained();
        let states =
            |of: &str| optimizer_layout(of, &table, dtypes, pool, phase, offloads_states, share.ranks);
        match self.lora.map_or(0, |lora| lora.trained_slots) {
            0 => layout.extend(states(name)?),
            slots => layout.extend(of_slots((name, slots), &table, pool, states)?),
        }
        if muon {
            let (at, stored) = ((pool, PhaseSet::of(&[phase])), [self.weights, dtypes.grads]);
            layout.extend(muon_layout(name, &table, stored, at, share.ranks)?);
        }
        if share.ranks > 1 && !plimsoll_devices::of(self.target.kind).reads_ranks_in_place {
            let shape = LandingShape {
                ranks: share.ranks,
                spread,
                summing: dtypes.summing,
                partial: dtypes.partial_on(table.device, share.ranks),
                sums: dtypes.grads,
                rows: pass.limits.rows as u32,
                hidden: self.spec.hidden,
            };
            layout.extend(landing_layout(name, &table, pool, phase, shape)?);
        }
        Ok(layout)
    }

    /// Returns the phases that its weights are read in: those of its passes and, of a teacher whose rows are kept, the
    /// update, which reads its head.
    fn phases(&self) -> impl Iterator<Item = Phase> {
        let keeps = self.update.is_none() && self.score.is_some_and(|pass| pass.limits.taught > 0);
        self.passes().map(|pass| pass.mode.phase()).chain(keeps.then_some(Phase::Update))
    }

    /// Returns the phase in which sharded weights are whole in `ROLE.whole`, if there is one: the rollout for those
    /// sampled from, the reward phase for others. A reference is a copy of the first role's shard.
    pub fn whole_in(&self) -> Option<Phase> {
        match (self.weights_are, self.name) {
            (WeightsAre::Spread(_), RoleName::Reference) => None,
            (WeightsAre::Spread(_), RoleName::Critic) => Some(Phase::Reward),
            (WeightsAre::Spread(_), _) if self.update.is_some() => Some(Phase::Rollout),
            (WeightsAre::Spread(_), _) => Some(Phase::Reward),
            _ => None,
        }
    }

    /// Returns the region of its rotary table, if it cannot share `actor`'s.
    pub(crate) fn rope(&self, actor: &ModelSpec, positions: usize) -> Result<Layout> {
        if rope::same(actor, &self.spec) {
            Ok(Layout::new())
        } else {
            let region = format!("{}.rope", self.name.name());
            rope::layout_as(&region, &self.spec, positions, self.target.pool)
        }
    }

    /// Returns its passes, each mode once.
    pub(crate) fn passes(&self) -> impl Iterator<Item = PassShape> {
        let update = self.update.map(|update| update.pass);
        let score = self.score.filter(|score| update.is_none_or(|update| update.mode != score.mode));
        score.into_iter().chain(update)
    }

    /// Returns the regions of a pass.
    pub(crate) fn activations(&self, pass: PassShape) -> Result<Layout> {
        let PassShape { mode, limits, .. } = pass;
        let mut layout = activations_layout(&self.spec, self.weights, self.target, mode, limits)?;
        if self.fp8 {
            layout.extend(fp8_layout(&self.spec, self.weights, self.target, mode, limits)?);
        }
        if let Some(lora) = self.lora {
            let Lora { shape, merge, .. } = lora;
            layout.extend(adapters_layout(
                &self.spec,
                self.weights,
                self.target,
                mode,
                limits,
                shape,
                merge,
            )?);
        }
        Ok(layout)
    }

    /// True if its passes have a mode that no role of another shape shares.
    pub(crate) fn has_own_passes(&self) -> bool {
        self.passes().any(|pass| matches!(pass.mode, Mode::Critic(_) | Mode::Reward(_) | Mode::Teacher(_)))
    }
}

impl Training {
    /// Returns the place of weights that nothing else determines.
    fn weights_are(&self) -> WeightsAre {
        if self.offload.weights && self.share.ranks > 1 {
            WeightsAre::Spread(self.share)
        } else {
            WeightsAre::Resident
        }
    }

    /// Returns the place of the first role's frozen weights, for a role that reads them.
    fn first_roles(&self) -> WeightsAre {
        match self.weights_are() {
            WeightsAre::Spread(_) => WeightsAre::FirstRolesParts,
            _ => WeightsAre::FirstRoles,
        }
    }
}

impl RunShape {
    /// Returns the roles of the run. The first is sampled from or trained; the others follow in the order of layout.
    pub fn roles(&self) -> Vec<RoleShape> {
        let first = RoleShape {
            name: if self.head == Head::Score { RoleName::Reward(0) } else { RoleName::Actor },
            spec: self.spec,
            head: self.head,
            weights: self.weights,
            target: self.target,
            weights_are: WeightsAre::Resident,
            lora: self.lora,
            quantize: self.coding(RoleName::Actor, self.lora.and_then(|lora| lora.quantize)),
            fp8: self.fp8,
            score: None,
            update: None,
            is_whole: false,
        };
        let mut roles = match &self.training {
            Some(training) => self.training_roles(training, first),
            None => vec![RoleShape { quantize: first.quantize.or(self.own_frozen()), ..first }],
        };
        let weights_are = self.training.as_ref().map_or(WeightsAre::Resident, Training::weights_are);
        let first = RoleShape { weights_are, ..first };
        roles.extend(self.scoring.iter().flat_map(|scoring| self.scoring_roles(scoring, first)));
        roles[0].is_whole = self.saves_whole();
        // What one leaves out none may give: a divergence between the two would be infinite.
        roles.iter_mut().for_each(|role| role.spec.suppressed = self.spec.suppressed);
        roles
    }

    /// Returns whether a checkpoint is the folder of a whole model of text and images.
    pub fn saves_whole(&self) -> bool {
        self.sight.is_some()
            && self.lora.is_none()
            && self.head == Head::Vocabulary
            && is_written_whole(self.spec.family)
    }

    /// Returns the roles that a method trains or compares with.
    fn training_roles(&self, training: &Training, first: RoleShape) -> Vec<RoleShape> {
        let update = |mode, packing: Packing| UpdateShape {
            pass: PassShape {
                mode,
                packing,
                limits: self.masked(training.pack.pass_of(packing.heads)),
                vocab: None,
            },
            share: training.share,
            spread: if training.trainers.count > 1 { Spread::Hosts } else { Spread::Host },
            cut: training.cut,
            dtypes: training.dtypes,
            offloads_states: training.offload.optimizer,
            balance_coef: training.balance_coef,
            muon: training.muon.is_some(),
        };
        let teacher = training.teacher.as_ref();
        let own_pass =
            |name| teacher.map_or(self.score_pass(), |teacher| teacher.own_pass(self.score_pass(), name));
        let mode = match self.head {
            Head::Vocabulary => Mode::Update(training.recompute),
            Head::Score => Mode::UpdateScore(training.recompute),
        };
        let score = match self.head {
            Head::Score => Some(update(mode, training.packing).pass),
            Head::Vocabulary => training.scores().then(|| own_pass(RoleName::Actor)),
        };
        let weights_are = training.weights_are();
        let of_first = update(mode, training.packing);
        let pass = teacher.map_or(of_first.pass, |teacher| teacher.update_pass(of_first.pass));
        let of_first = Some(UpdateShape { pass, ..of_first });
        let mut roles = vec![RoleShape { score, update: of_first, weights_are, ..first }];
        if let (Some(update), Some(_)) = (&mut roles[0].update, self.lora) {
            *update = update.of_adapters();
        }
        let first = RoleShape { lora: None, ..first };
        if training.reference {
            let weights_are = match (self.lora, training.offload.reference) {
                (Some(_), _) => training.first_roles(),
                (None, true) if training.share.ranks > 1 => WeightsAre::Spread(training.share),
                (None, true) => WeightsAre::Offloaded,
                (None, false) => WeightsAre::Resident,
            };
            roles.push(RoleShape {
                name: RoleName::Reference,
                weights_are,
                quantize: first.quantize.or(self.own_frozen()),
                score: Some(own_pass(RoleName::Reference)),
                ..first
            });
        }
        roles.extend(teacher.iter().flat_map(|teacher| self.teacher_roles(teacher, weights_are, first)));
        if let Some(spec) = training.critic {
            let update = update(Mode::Critic(training.recompute), Packing::default());
            let update = UpdateShape { balance_coef: 0.0, muon: false, ..update };
            roles.push(self.critic(training, spec, update, first));
        }
        roles
    }

    /// Returns the roles of a teacher's models. Those of one shape share their passes.
    fn teacher_roles(
        &self,
        teacher: &TeacherShape,
        weights_are: WeightsAre,
        first: RoleShape,
    ) -> impl Iterator<Item = RoleShape> {
        teacher.models.teachers().map(move |(name, &spec)| {
            let set = teacher.models.teachers().position(|(_, other)| *other == spec).unwrap_or(0);
            let pass = self.score_pass().listing(teacher.lists).taught(teacher.kept_by(name));
            let score = Some(PassShape { mode: Mode::Teacher(set as u8), ..pass.teaching(&first.spec) });
            let quantize = self.coding(name, teacher.quantize.get(name).copied());
            let weights_are = if quantize.is_some() { WeightsAre::Resident } else { weights_are };
            RoleShape { name, spec, score, quantize, fp8: false, weights_are, ..first }
        })
    }

    /// Returns the critic, which makes the same passes as the actor.
    fn critic(
        &self,
        training: &Training,
        spec: ModelSpec,
        update: UpdateShape,
        first: RoleShape,
    ) -> RoleShape {
        let pass = PassShape { limits: self.pass(), ..update.pass };
        let update = UpdateShape { pass, ..update };
        let (name, head, quantize) = (RoleName::Critic, Head::Score, None);
        let weights_are = training.weights_are();
        let score = Some(pass);
        let first = RoleShape { fp8: false, ..first };
        let full =
            RoleShape { name, spec, head, quantize, score, update: Some(update), weights_are, ..first };
        let Some(CriticAdapter { lora, shares }) = training.critic_adapter else { return full };
        RoleShape {
            // Another model's weights under adapters are whole.
            weights_are: if shares { training.first_roles() } else { WeightsAre::Resident },
            lora: Some(lora),
            quantize: self.coding(if shares { RoleName::Actor } else { name }, lora.quantize),
            update: Some(update.of_adapters()),
            ..full
        }
    }

    /// Returns how the products of a role's model are stored; `RoleName::Actor` is the run's own model, in any role.
    fn coding(&self, role: RoleName, how: Option<Quantization>) -> Option<Coding> {
        let of_file = || *self.encodings.get(role).expect("opening requires a GGUF file");
        how.map(|how| Coding::of(how, of_file))
    }

    /// Returns how the run's own model is stored in a role that neither trains nor adapts it.
    fn own_frozen(&self) -> Option<Coding> {
        self.coding(RoleName::Actor, self.own_quantize())
    }

    /// Returns the pass that computes log-probabilities of all response tokens.
    fn score_pass(&self) -> PassShape {
        PassShape { mode: Mode::Score, packing: Packing::default(), limits: self.pass(), vocab: None }
    }

    /// Returns the roles of the reward models that score responses. Those of one shape share their passes.
    fn scoring_roles(&self, scoring: &Scoring, first: RoleShape) -> impl Iterator<Item = RoleShape> {
        // One score per response, read at its last token.
        let packing = Packing { heads: Heads::End, whole_groups: false };
        let limits = scoring.pack.pass_of(Heads::End);
        let lora_of = |name: RoleName| scoring.adapters.get(name).copied();
        let passes_of =
            move |(name, spec): (RoleName, &ModelSpec)| (*spec, lora_of(name).map(|lora| lora.shape));
        scoring.models.rewards().map(move |(name, spec)| {
            let own = passes_of((name, spec));
            let set = scoring.models.rewards().position(|other| passes_of(other) == own).unwrap_or(0);
            let score = Some(PassShape { mode: Mode::Reward(set as u8), packing, limits, vocab: None });
            let (head, lora, spec) = (Head::Score, lora_of(name), *spec);
            let quantize = self.coding(name, lora.and_then(|lora| lora.quantize));
            // Base weights of adapters are not sharded.
            let weights_are = if lora.is_some() { WeightsAre::Resident } else { first.weights_are };
            let first = RoleShape { fp8: false, ..first };
            RoleShape { name, spec, head, lora, quantize, score, update: None, weights_are, ..first }
        })
    }
}
