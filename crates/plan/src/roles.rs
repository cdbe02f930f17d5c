//! The models of a run as roles: the name of each, whether it is trained, and which passes it makes.
//!
//! Actor, reference, critic and reward model are values of one type, in the order in which they are laid out. A further
//! role is a name, a value of `RunShape::roles` and, where its model is not the run's own, a row that opens it.

use crate::role_name::RoleName;
use crate::shape::{RunShape, Scoring, Training};
use plimsoll_base::{DType, ModelSpec, PhaseSet, Result};
use plimsoll_files::Head;
use plimsoll_memory::Layout;
use plimsoll_model::{Mode, ParamTable, PassLimits, Target, activations_layout, offloaded_layout, rope};
use plimsoll_train::{Cut, Heads, Packing, Share, StateDTypes, optimizer_layout};

/// How sequences pass through a role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassShape {
    /// What the pass keeps, and its phase.
    pub mode: Mode,
    /// How sequences become micro-batches.
    pub packing: Packing,
    /// The most that one pass holds.
    pub limits: PassLimits,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateShape {
    pub pass: PassShape,
    pub share: Share,
    pub cut: Cut,
    pub dtypes: StateDTypes,
    /// True if the optimizer's states are in the device's host memory.
    pub offloads_states: bool,
}

/// A role as the plan sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleShape {
    pub name: RoleName,
    /// The decoder's body.
    pub spec: ModelSpec,
    pub head: Head,
    pub weights: DType,
    pub target: Target,
    /// True if the weights are in the device's host memory.
    pub offloads_weights: bool,
    /// Forward passes over whole sequences.
    pub score: Option<PassShape>,
    /// Updates; a role without them is frozen.
    pub update: Option<UpdateShape>,
}

impl RoleShape {
    /// Returns the role's parameter table.
    pub fn table(&self) -> ParamTable {
        match self.head {
            Head::Vocabulary => ParamTable::new(&self.spec, self.target.kind, self.weights),
            Head::Score => ParamTable::critic(&self.spec, self.target.kind, self.weights),
        }
    }

    /// Returns the regions of its weights, gradients and optimizer states.
    ///
    /// Errors: `size-overflow`.
    pub(crate) fn states(&self) -> Result<Layout> {
        let (name, table, pool) = (self.name.name(), self.table(), self.target.pool);
        let mut layout = Layout::new();
        match self.offloads_weights {
            true => layout.extend(offloaded_layout(name, &table, self.weights, pool)?),
            false => {
                let (region, elements) = (format!("{name}.weights"), [table.elements]);
                layout.arena(&region, "model", pool, PhaseSet::RESIDENT, &elements, self.weights)?;
            }
        }
        if let Some(UpdateShape { pass, share, dtypes, offloads_states, .. }) = self.update {
            let phase = pass.mode.phase();
            layout.extend(optimizer_layout(name, &table, dtypes, pool, phase, offloads_states, share.ranks)?);
        }
        Ok(layout)
    }

    /// Returns the region of its rotary table, if `actor`'s does not serve.
    pub(crate) fn rope(&self, actor: &ModelSpec, positions: usize) -> Result<Layout> {
        match rope::same(actor, &self.spec) {
            true => Ok(Layout::new()),
            false => {
                let region = format!("{}.rope", self.name.name());
                rope::layout_as(&region, &self.spec, positions, self.target.pool)
            }
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
        activations_layout(&self.spec, self.weights, self.target, pass.mode, pass.limits)
    }

    /// True if its passes have a phase that no other role shares.
    pub(crate) fn has_own_phase(&self) -> bool {
        self.passes().any(|pass| matches!(pass.mode, Mode::Critic(_) | Mode::Reward(_)))
    }
}

impl RunShape {
    /// Returns the roles of the run. The first is the one that is sampled from or trained; the others follow in the order in
    /// which they are laid out.
    pub fn roles(&self) -> Vec<RoleShape> {
        let first = RoleShape {
            name: if self.head == Head::Score { RoleName::Reward } else { RoleName::Actor },
            spec: self.spec,
            head: self.head,
            weights: self.weights,
            target: self.target,
            offloads_weights: false,
            score: None,
            update: None,
        };
        let mut roles =
            self.training.as_ref().map_or(vec![first], |training| self.training_roles(training, first));
        roles.extend(self.scoring.iter().flat_map(|scoring| scoring_roles(scoring, first)));
        roles
    }

    /// Returns the roles that a method trains or compares with.
    fn training_roles(&self, training: &Training, first: RoleShape) -> Vec<RoleShape> {
        let update = |mode, packing: Packing| UpdateShape {
            pass: PassShape { mode, packing, limits: training.pack.pass_of(packing.heads) },
            share: training.share,
            cut: training.cut,
            dtypes: training.dtypes,
            offloads_states: training.offload.optimizer,
        };
        let mode = match self.head {
            Head::Vocabulary => Mode::Update(training.recompute),
            Head::Score => Mode::UpdateScore(training.recompute),
        };
        let score = match self.head {
            Head::Score => Some(update(mode, training.packing).pass),
            Head::Vocabulary => training.scores().then(|| self.score_pass()),
        };
        let mut roles = vec![RoleShape { score, update: Some(update(mode, training.packing)), ..first }];
        if training.reference {
            roles.push(RoleShape {
                name: RoleName::Reference,
                offloads_weights: training.offload.reference,
                score: Some(self.score_pass()),
                ..first
            });
        }
        if let Some(spec) = training.critic {
            let update = update(Mode::Critic(training.recompute), Packing::default());
            let pass = PassShape { limits: self.pass(), ..update.pass };
            let update = UpdateShape { pass, ..update };
            let (name, head) = (RoleName::Critic, Head::Score);
            roles.push(RoleShape { name, spec, head, score: Some(pass), update: Some(update), ..first });
        }
        roles
    }

    /// Returns the pass that computes log-probabilities of all response tokens.
    fn score_pass(&self) -> PassShape {
        PassShape { mode: Mode::Score, packing: Packing::default(), limits: self.pass() }
    }
}

/// Returns the roles of the reward models that score responses. Those of one shape share their passes.
fn scoring_roles(scoring: &Scoring, first: RoleShape) -> impl Iterator<Item = RoleShape> {
    // One score per response, read at its last token.
    let packing = Packing { heads: Heads::End, whole_groups: false };
    let limits = scoring.pack.pass_of(Heads::End);
    scoring.models.rewards().map(move |(name, &spec)| {
        let set = scoring.models.rewards().position(|(_, other)| *other == spec).unwrap_or(0);
        let score = Some(PassShape { mode: Mode::Reward(set as u8), packing, limits });
        RoleShape { name, spec, head: Head::Score, score, update: None, ..first }
    })
}
