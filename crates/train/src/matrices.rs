//! The matrices that Muon updates: which tensors they are, whose elements a rank owns, and the regions that they pass
//! through.

use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{MatrixLayout, OwnedRun, PANEL, Run};
use plimsoll_memory::{Buf, InPhase, Layout, Pool, Turn};
use plimsoll_model::{Param, ParamTable};
use std::ops::Range;

/// The regions through which matrices pass while the optimizer runs: `ROLE.muon_direction` and so on, each for the
/// largest one. `ranks` other than one also have `ROLE.muon_taken`, with elements of all.
///
/// `weights`, `grads`: dtypes of the weights and of the sums of gradients.
/// Errors: `size-overflow`.
pub fn layout(
    role: &str,
    table: &ParamTable,
    [weights, grads]: [DType; 2],
    (pool, phases): (Pool, PhaseSet),
    ranks: usize,
) -> Result<Layout> {
    let (mut group, mut part, mut short, mut matrix) = (0, 0, 0, 0);
    let order = MatrixLayout::of_weights(table.device, DType::F32);
    for of in groups(table, MatrixLayout::of_weights(table.device, weights)) {
        group = group.max(of.run.elements);
        for rows in &of.parts {
            let Shape { s, l, .. } = Shape::of(rows.len(), of.k);
            (part, short) = (part.max((s * l) as u64), short.max((s * s) as u64));
            for [n, k] in [[s, l], [l, s], [s, s]] {
                matrix = matrix.max(order.elements(n as u64, k as u64));
            }
        }
    }
    let mut layout = Layout::new();
    for (name, shape, dtype) in [
        ("taken", &[group][..], Some(grads).filter(|_| ranks > 1)),
        ("direction", &[group], Some(DType::F32)),
        ("rows", &[2, part], Some(DType::F32)),
        ("squares", &[2, short], Some(DType::F32)),
        ("matrix", &[matrix], Some(DType::F32)),
    ] {
        let Some(dtype) = dtype else { continue };
        let region = format!("{role}.muon_{name}");
        layout.arena_in_turn(&region, "train", pool, phases, Turn::Optimizer, shape, dtype)?;
    }
    Ok(layout)
}

/// The parameters that Muon updates, and what is left to AdamW.
#[derive(Clone, Debug)]
pub(crate) struct Matrices {
    pub(crate) groups: Vec<Group>,
    /// Element order of the weights.
    pub(crate) order: MatrixLayout,
    /// Elements of them that this rank owns, and of everything else.
    pub(crate) own: Vec<OwnedRun>,
    pub(crate) rest: Vec<OwnedRun>,
}

/// Tensors of a parameter that fill whole panels: one, unless panels are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Its elements in the flat buffer.
    pub(crate) run: Run,
    pub(crate) rows: usize,
    pub(crate) k: usize,
    /// Rows of each tensor.
    pub(crate) parts: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug)]
pub struct MuonBufs<'p> {
    pub(crate) taken: Option<Buf<'p>>,
    pub(crate) direction: Buf<'p>,
    pub(crate) rows: Buf<'p>,
    pub(crate) squares: Buf<'p>,
    pub(crate) matrix: Buf<'p>,
}

impl<'p> MuonBufs<'p> {
    /// Resolves the regions of a role; `None` if it has none.
    pub fn bind(phase: &InPhase<'p>, role: &str) -> Option<MuonBufs<'p>> {
        let get = |name: &str| phase.get(&format!("{role}.muon_{name}"));
        Some(MuonBufs {
            taken: get("taken"),
            direction: get("direction")?,
            rows: get("rows")?,
            squares: get("squares")?,
            matrix: get("matrix")?,
        })
    }
}

/// A matrix with its short side first: [s, l].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) s: usize,
    pub(crate) l: usize,
    /// True if its rows are the long side.
    pub(crate) turned: bool,
}

impl Shape {
    pub(crate) fn of(rows: usize, cols: usize) -> Shape {
        Shape { s: rows.min(cols), l: rows.max(cols), turned: rows > cols }
    }
}

fn is_matrix(param: &Param) -> bool {
    param.is_of_layer() && !param.is_vector()
}

/// Returns the groups of all matrices of layers, in the order of the flat buffer.
fn groups(table: &ParamTable, order: MatrixLayout) -> Vec<Group> {
    let mut out = Vec::new();
    for param in table.params.iter().filter(|param| is_matrix(param)) {
        let (n, k) = (param.n as usize, param.k as usize);
        let elements = |rows: usize| order.elements(rows as u64, k as u64);
        let (mut first, mut row, mut parts) = (0, 0, Vec::new());
        for part in &param.parts {
            let rows = part.rows as usize;
            parts.push(row - first..row - first + rows);
            row += rows;
            if row == n || order == MatrixLayout::Rows || row.is_multiple_of(PANEL) {
                let start = param.offset + elements(first);
                let run = Run { start, elements: elements(row - first) };
                out.push(Group { run, rows: row - first, k, parts: std::mem::take(&mut parts) });
                first = row;
            }
        }
    }
    out
}

impl Matrices {
    pub(crate) fn of(table: &ParamTable, weights: DType, owned: &[OwnedRun]) -> Matrices {
        let order = MatrixLayout::of_weights(table.device, weights);
        let (mut own, mut rest) = (Vec::new(), Vec::new());
        let mut params = table.params.iter().peekable();
        while let Some(param) = params.next() {
            let end = params.peek().map_or(table.elements, |next| next.offset);
            let run = Run { start: param.offset, elements: end - param.offset };
            let to = if is_matrix(param) { &mut own } else { &mut rest };
            to.extend(within(owned, run));
        }
        Matrices { groups: groups(table, order), order, own, rest }
    }
}

/// Returns what of `owned`, which ascends, is in a run.
pub(crate) fn within(owned: &[OwnedRun], run: Run) -> impl Iterator<Item = OwnedRun> + '_ {
    let first = owned.partition_point(|owned| owned.run.end() <= run.start);
    owned[first..].iter().map_while(move |owned| owned.inside(run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Share;
    use plimsoll_arch::{FileShape, ModelSpec};

    #[test]
    fn a_group_is_a_published_tensor_where_panels_are_whole() {
        let spec = ModelSpec::preset("qwen3-30b-a3b").unwrap();
        for kind in [&plimsoll_cpu::LAYOUTS, &plimsoll_cuda::LAYOUTS] {
            let table = ParamTable::new(&spec, kind, DType::Bf16);
            let groups = groups(&table, MatrixLayout::of_weights(kind, DType::Bf16));
            let parts = table.params.iter().filter(|param| is_matrix(param)).map(|param| param.parts.len());
            assert_eq!(groups.len(), parts.sum::<usize>(), "{}", kind.name);
            assert!(groups.windows(2).all(|pair| pair[0].run.end() <= pair[1].run.start), "{}", kind.name);
        }
    }

    #[test]
    fn tensors_that_share_a_panel_are_one_group() {
        let nano = ModelSpec::preset("nano").unwrap().file_shape();
        let spec = FileShape { kv_heads: 1, head_dim: 24, ..nano }.spec();
        let table = ParamTable::new(&spec, &plimsoll_cpu::LAYOUTS, DType::F32);
        let groups = groups(&table, MatrixLayout::Single);
        assert!(groups.iter().any(|group| group.parts.len() > 1), "k and v of 24 rows");
        for param in table.params.iter().filter(|param| is_matrix(param)) {
            let of_param = groups
                .iter()
                .filter(|g| (param.offset..param.offset + param.elements).contains(&g.run.start));
            assert_eq!(of_param.map(|group| group.run.elements).sum::<u64>(), param.elements);
        }
    }

    #[test]
    fn what_is_no_matrix_of_a_layer_is_left_to_adamw() {
        let table = ParamTable::new(&ModelSpec::preset("nano").unwrap(), &plimsoll_cpu::LAYOUTS, DType::F32);
        for ranks in [1, 3] {
            for rank in 0..ranks {
                let owned = Share { rank, ranks }.owned(&table);
                let of = Matrices::of(&table, DType::F32, &owned);
                let sum = |owned: &[OwnedRun]| owned.iter().map(|owned| owned.run.elements).sum::<u64>();
                assert_eq!(sum(&of.own) + sum(&of.rest), sum(&owned));
                let embed = &table.params[0];
                assert!(of.own.iter().all(|owned| owned.run.start >= embed.offset + embed.elements));
            }
        }
    }
}
