//! Adapters of a tower against the weights that they add up to: W + s B A gives the same vectors, and of its gradient D
//! follow those of A, s B^T D, and of B, s D A^T. Gradients of weights are compared with transformers in `images`.

use super::*;
use plimsoll_arch::{LoraShape, LoraTargets, ParamKind};
use plimsoll_device::Layouts;
use plimsoll_model::Param;
use plimsoll_model::tower::TowerAdapters;

const SCALE: f32 = 0.5;

/// Returns the table of a model's adapters with those of its tower.
pub(super) fn table(spec: &ModelSpec, sight: &SightSpec, kind: &'static Layouts, dtype: DType) -> ParamTable {
    let shape = LoraShape { rank: RANK, targets: LoraTargets::ATTENTION.of_model(spec) };
    ParamTable::adapters(spec, kind, dtype, shape).with_tower_adapters(&sight.tower, kind, dtype, RANK)
}

/// A matrix on the host: rows, columns, values.
struct Host(usize, usize, Vec<f32>);

impl Host {
    /// Returns `scale` a b, or `scale` a^T b.
    fn product(a: &Host, is_turned: bool, b: &Host, scale: f32) -> Host {
        let (n, inner) = if is_turned { (a.1, a.0) } else { (a.0, a.1) };
        assert_eq!(inner, b.0, "a product");
        let of = |i: usize, j: usize| a.2[if is_turned { j * n + i } else { i * inner + j }];
        let at = |i: usize, k: usize| (0..inner).map(|j| of(i, j) * b.2[j * b.1 + k]).sum::<f32>() * scale;
        Host(n, b.1, (0..n * b.1).map(|at_| at(at_ / b.1, at_ % b.1)).collect())
    }

    fn turned(&self) -> Host {
        let values = (0..self.2.len()).map(|at| self.2[at % self.0 * self.1 + at / self.0]).collect();
        Host(self.1, self.0, values)
    }

    fn rows(&self, first: usize, count: usize) -> Host {
        Host(count, self.1, self.2[first * self.1..][..count * self.1].to_vec())
    }
}

impl Run<'_> {
    fn matrix<'b>(&self, param: &Param, buf: Buf<'b>, before: u64) -> Matrix<'b> {
        let buf = buf.slice((param.offset - before) as usize, param.elements as usize);
        let layout = MatrixLayout::of_weights(self.tables[1].device, DType::F32);
        Matrix::new(buf, param.n as usize, param.k as usize, layout)
    }

    fn host(&self, param: &Param, buf: Buf<'_>, before: u64) -> Host {
        let mut values = vec![0.0; param.n as usize * param.k as usize];
        self.dev.read_rows(self.matrix(param, buf, before), 0, &mut values);
        Host(param.n as usize, param.k as usize, values)
    }

    /// Returns the vectors and the gradients `of` fixed gradients of vectors.
    fn seen_by(&self, tower: &Tower<'_>, grads: TowerGradients<'_, '_>) -> Vec<f32> {
        let index = TowerIndex::of(&self.sight.tower, &self.reference.grids());
        let patches = self.reference.f32s("pixel_values");
        let pass = TowerPass::upload(self.dev, self.tower_regions, &index, &patches);
        tower_forward(self.dev, tower, &pass, &self.vectors, 0);
        let d = self.d_vectors;
        let wave: Vec<f32> = (0..d.all.len()).map(|i| (i as f32 * 0.7).sin()).collect();
        self.dev.write_f32(d.all, 0, &wave);
        tower_backward(self.dev, tower, grads, false, &pass, (&d, 0));
        // A second pass of the same images adds as much.
        tower_forward(self.dev, tower, &pass, &self.vectors, 0);
        tower_backward(self.dev, tower, grads, true, &pass, (&d, 0));
        read(self.dev, self.vectors.all)
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| value.abs().max(most))
}

/// Sums of a few hundred f32 products in another order, through up to eight layers: 1e-4 of the largest is ten times
/// what they differ by.
#[track_caller]
fn near(what: &str, one: &[f32], other: &[f32]) {
    close(what, one, other, 1e-4 * largest(other));
}

#[test]
fn adapters_of_a_tower_learn_what_their_sums_with_weights_do() {
    let names = ["qwen3_vl", "qwen2_5_vl"];
    let cases = names.into_iter().flat_map(|name| Machine::all().into_iter().map(move |of| (name, of)));
    for (name, machine) in cases {
        Seeing::open(name, UPDATE, 2, machine).run(UPDATE, |run| {
            let (dev, spec, dtype) = (run.dev, &run.sight.tower, DType::F32);
            let all = &table(&run.decoder.spec, run.sight, run.tables[1].device, dtype);
            let (first, [own, grads]) = (all.tower_run().start, run.adapters);
            for param in all.params.iter().filter(|param| param.is_of_tower()) {
                let (n, k) = (param.n as usize, param.k as usize);
                let values: Vec<f32> =
                    (0..n * k).map(|i| ((param.offset as usize + i) as f32).sin() * 0.1).collect();
                dev.write_rows(run.matrix(param, own, first), 0, &values);
            }
            let bind = |buf| TowerAdapters::bind(spec, all, dtype, SCALE, buf).unwrap();
            let params = run.tower.params.clone().with_adapters(&bind(own));
            let tower = Tower { spec: *spec, params, rope: run.tower.rope };
            dev.zero(grads);
            let vectors = run.seen_by(&tower, TowerGradients::Adapters(&bind(grads)));
            // Sums, in place of the weights.
            let weights = run.tower.params.all;
            let products = || {
                all.params.iter().filter_map(|param| match param.kind {
                    ParamKind::TowerA(of) => {
                        Some((param, of, run.tables[1].find(ParamKind::Tower(of), param.layer).unwrap()))
                    }
                    _ => None,
                })
            };
            let blocks =
                |of, layer| (0..2).filter_map(move |block| all.find(ParamKind::TowerB(of, block), layer));
            for (a, of, w) in products() {
                let (a_all, mut sum, mut row) = (run.host(a, own, first), run.host(w, weights, 0), 0);
                for (block, b) in blocks(of, a.layer).enumerate() {
                    let b = run.host(b, own, first);
                    let added =
                        Host::product(&b, false, &a_all.rows(block * RANK as usize, RANK as usize), SCALE);
                    let to = &mut sum.2[row * sum.1..][..added.2.len()];
                    to.iter_mut().zip(&added.2).for_each(|(to, added)| *to += added);
                    row += b.0;
                }
                dev.write_rows(run.matrix(w, weights, 0), 0, &sum.2);
            }
            let merged = run.seen_by(run.tower, TowerGradients::Weights(run.tower_grads));
            near(&format!("{name} {machine:?}: vectors"), &vectors, &merged);
            for (a, of, w) in products() {
                let (d_w, a_all, d_a) =
                    (run.host(w, run.tower_grads.all, 0), run.host(a, own, first), run.host(a, grads, first));
                let mut row = 0;
                for (block, b) in blocks(of, a.layer).enumerate() {
                    let (b_own, d_b) = (run.host(b, own, first), run.host(b, grads, first));
                    let (d, at) = (d_w.rows(row, b_own.0), block * RANK as usize);
                    row += b_own.0;
                    let expect = Host::product(&b_own, true, &d, SCALE);
                    let what = format!("{name} {machine:?} {of:?} {}", a.layer);
                    near(&format!("{what} A"), &d_a.rows(at, RANK as usize).2, &expect.2);
                    let expect = Host::product(&d, false, &a_all.rows(at, RANK as usize).turned(), SCALE);
                    near(&format!("{what} B"), &d_b.2, &expect.2);
                    assert!(largest(&d_b.2) > 0.0, "{what}: nothing is learnt");
                }
            }
        });
    }
}
