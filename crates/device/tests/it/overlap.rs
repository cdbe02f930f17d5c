//! No operation runs while its outputs overlap another operand, the scratch, or another thread's operation.

use plimsoll_arch::{Gate, Gelu, QkNorms, RopeAxes};
use plimsoll_base::{DType, Encoding, PhaseSet};
use plimsoll_device::*;
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

/// A device that counts what reaches it, and may wait inside an operation.
struct Counter {
    claims: Claims,
    launched: AtomicUsize,
    gate: Option<(Barrier, Barrier)>,
}

impl Counter {
    fn new(is_serial: bool) -> Counter {
        Counter { claims: Claims::new(is_serial), launched: AtomicUsize::new(0), gate: None }
    }
}

impl Backend for Counter {
    fn kind(&self) -> &'static Layouts {
        unreachable!("no operation of these tests asks")
    }
    fn machine_type(&self) -> String {
        "a counter".into()
    }
    fn peak_flops(&self, _: f64) -> f64 {
        1.0
    }
    fn perturb_norms(&self, _: bool) {}
    fn set_sampler_noise(&self, _: Option<plimsoll_device::SamplerNoise>) {}
    fn claims(&self) -> &Claims {
        &self.claims
    }
    fn launch(&self, op: Checked<'_, '_>) {
        self.launched.fetch_add(1, Ordering::Relaxed);
        if let (Some((begun, end)), Op::RmsNorm { .. }) = (&self.gate, op.op()) {
            begun.wait();
            end.wait();
        }
    }
    fn put_u32(&self, _: &Claim<'_>, _: Buf<'_>, _: &[u32]) {}
    fn get_u32(&self, _: &Claim<'_>, _: Buf<'_>, _: &mut [u32]) {}
    fn put_bytes(&self, _: &Claim<'_>, _: Buf<'_>, _: &[u8]) {}
    fn put_f32(&self, _: &Claim<'_>, _: Buf<'_>, _: &[f32]) {}
    fn get_f32(&self, _: &Claim<'_>, _: Buf<'_>, _: &mut [f32]) {}
    fn put_rows(&self, _: &Claim<'_>, _: Matrix<'_>, _: usize, _: &[f32]) {}
    fn get_rows(&self, _: &Claim<'_>, _: Matrix<'_>, _: usize, _: &mut [f32]) {}
    fn get_stored(&self, _: &Claim<'_>, _: Matrix<'_>, _: usize, _: &mut [u8]) {}
    fn get_codes(&self, _: &Claim<'_>, _: Coded<'_>, _: (usize, MatrixLayout), _: usize, _: &mut [f32]) {}
    fn get_sum_squares(&self, _: &Claim<'_>, _: Buf<'_>) -> f64 {
        0.0
    }
    fn get_squares_of(
        &self,
        _: &Claim<'_>,
        _: Buf<'_>,
        _: &mut dyn Iterator<Item = Run>,
        _: &mut dyn FnMut(f64),
    ) {
    }
    fn sync(&self) {}
    fn offload_begin(&self) {}
    fn offload_wait(&self, _: usize) {}
    fn bring<'a, 'c>(&self, _: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>) {
        copies.for_each(drop);
    }
    fn send_back<'a, 'c>(&self, _: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>) {
        copies.for_each(drop);
    }
}

/// `count` buffers of 256 f32 next to each other.
fn buffers(count: usize) -> Vec<Buf<'static>> {
    let mut layout = Layout::new();
    layout
        .arena("all", "test", Pool::Host, PhaseSet::RESIDENT, &[256 * count as u64], DType::F32)
        .expect("a small region");
    let arena: &'static mut Arena = Box::leak(Box::new(Arena::new(ArenaMap::new(&layout, 0))));
    let all = arena.split().0.buf("all");
    (0..count).map(|i| all.part(i, 256)).collect()
}

type Named<'n> = dyn FnMut(&'static str) -> Buf<'static> + 'n;
/// Its operands by name, those that it writes, and (input, output) that may be one buffer.
type Case = (fn(&mut Named<'_>) -> Op<'static>, &'static str, &'static str);

fn matrix(buf: Buf<'static>) -> Matrix<'static> {
    Matrix::new(buf, 16, 16, MatrixLayout::Rows)
}

fn head_out(b: &mut Named<'_>) -> HeadOut<'static> {
    HeadOut { logprobs: b("logprobs"), lse: b("lse"), entropy: b("entropy") }
}

fn listed(b: &mut Named<'_>) -> ListedTokens<'static> {
    ListedTokens { ids: b("ids"), logprobs: b("listed") }
}

fn listed_backward(b: &mut Named<'_>) -> ListedBackward<'static> {
    ListedBackward { listed: listed(b), slopes: b("slopes"), rest: b("rest"), d: b("d") }
}

fn head_teacher(b: &mut Named<'_>) -> HeadSide<'static> {
    let (x, w, lse) = (b("teacher_x"), matrix(b("teacher_w")), b("teacher_lse"));
    HeadSide { x, w, lse, logits: Logits::times(1.0), tile: b("teacher_tile") }
}

fn whole_backward(b: &mut Named<'_>) -> DivergenceBackward<'static> {
    DivergenceBackward { teacher: head_teacher(b), how: Measure::Forward, means: b("means"), d: b("d_whole") }
}

fn kv(b: &mut Named<'_>) -> Kv<'static> {
    Kv { keys: b("keys"), values: b("values"), kv_heads: 1, head_dim: 16 }
}

fn batch(b: &mut Named<'_>) -> Batch<'static> {
    let (positions, slots) = (b("positions"), b("slots"));
    Batch { positions, slots, segments: b("segments"), tables: b("tables"), keys_max: 16 }
}

fn scores(b: &mut Named<'_>) -> Scores<'static> {
    Scores { sinks: Some(b("sinks")), ..Scores::of(ALL_KEYS) }
}

fn coded(b: &mut Named<'_>) -> Coded<'static> {
    Coded { codes: b("codes"), scales: b("scales") }
}

fn codes(b: &mut Named<'_>) -> Codes<'static> {
    let (words, scales) = (b("codes"), Some(b("scales")));
    Codes::of(Blocks { encoding: Encoding::Nf4, words, scales, n: 16, k: 16 })
}

fn norm(b: &mut Named<'_>) -> Norm<'static> {
    Norm::new(b("w"), 1e-6)
}

fn layer_norm(b: &mut Named<'_>) -> LayerNorm<'static> {
    LayerNorm { w: b("w"), b: b("b"), eps: 1e-6 }
}

fn qk_norm(b: &mut Named<'_>) -> QkNorm<'static> {
    QkNorm { q: b("norm q"), k: b("norm k"), eps: 1e-6, offset: 0.0, of: QkNorms::Heads }
}

fn adapted(b: &mut Named<'_>) -> Adapted<'static> {
    let (w, bias) = (matrix(b("w")), Some(b("bias")));
    Adapted { w, codes: None, fp8: None, bias, adapter: adapter(b, ["a", "b0", "b1"]) }
}

fn adapter(b: &mut Named<'_>, [a, first, second]: [&'static str; 3]) -> Adapter<'static> {
    let block = |b, first| Some(AdapterBlock { b: matrix(b), first });
    let blocks = [block(b(first), 0), block(b(second), 16), None, None];
    Adapter { a: matrix(b(a)), blocks, scale: 1.0 }
}

fn experts(buf: Buf<'static>) -> Experts<'static> {
    Experts::new(buf, 4, 8, 8, MatrixLayout::Rows)
}

fn of_experts(b: &mut Named<'_>, [a, first, second]: [&'static str; 3]) -> ExpertsAdapter<'static> {
    let blocks = [Some((experts(b(first)), 0)), Some((experts(b(second)), 16))];
    ExpertsAdapter { a: experts(b(a)), blocks, n: 32, scale: 1.0 }
}

fn routing(b: &mut Named<'_>) -> Routing<'static> {
    let sigmoid = Sigmoid { correction: b("correction"), groups: 2, groups_chosen: 1, factor: 1.0 };
    Routing { experts: 4, chosen: 2, normalizes: true, sigmoid: Some(sigmoid) }
}

fn routes(b: &mut Named<'_>) -> Routes<'static> {
    let [experts, weights] = [b("experts"), b("weights")];
    Routes { experts, weights, pairs: b("pairs"), places: b("places"), starts: b("starts") }
}

const SAMPLING: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
const ADAMW: AdamW = AdamW {
    lr: 0.1,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weight_decay: 0.0,
    step: 1,
    grad_scale: 1.0,
    seed: 1,
    first_element: 0,
};
const HEADS: Heads = Heads { heads: 1, kv_heads: 1, head_dim: 16 };

/// Every operation: buffers, the ones it writes, and pairs that may be the same buffer.
#[rustfmt::skip]
const CASES: &[Case] = &[
    (|b| Op::Embed { table: matrix(b("table")), ids: b("ids"), out: b("out") }, "out", ""),
    (|b| Op::Scale { x: b("x"), by: 2.0 }, "x", ""),
    (|b| Op::ScaleBy { x: b("x"), by: b("by") }, "x", ""),
    (|b| Op::AddBias { x: b("x"), bias: b("bias") }, "x", ""),
    (|b| Op::RmsNorm { x: b("x"), norm: norm(b), out: b("out") }, "out", ""),
    (|b| Op::RmsNormAdd { x: b("x"), norm: norm(b), resid: b("resid"), out: b("out") }, "out", "resid out"),
    (|b| Op::Matmul { x: b("x"), w: matrix(b("w")), bias: Some(b("bias")), out: b("out"), add: true }, "out", ""),
    (|b| Op::MatmulAdd { x: b("x"), w: matrix(b("w")), resid: b("resid"), out: b("out") }, "out", "resid out"),
    (|b| Op::AdaptDown { x: b("x"), adapter: adapter(b, ["a", "b0", "b1"]), u: b("u") }, "u", ""),
    (|b| Op::Adapted { x: b("x"), of: adapted(b), resid: None, u: b("u"), out: b("out") }, "u out", ""),
    (|b| Op::Adapted { x: b("x"), of: adapted(b), resid: Some(b("resid")), u: b("u"), out: b("out") }, "u out", "resid out"),
    (|b| Op::Merge { w: matrix(b("w")), adapter: adapter(b, ["a", "b0", "b1"]), out: matrix(b("out")) }, "out", ""),
    (|b| Op::Rope { qkv: b("qkv"), norms: Some(qk_norm(b)), rotation: Rotation::new(b("rope")), batch: batch(b), kv: kv(b), q_out: b("q_out") },
        "keys values q_out", ""),
    (|b| Op::CopyKv { kv: kv(b), copies: b("copies") }, "keys values", ""),
    (|b| Op::Attention { q: b("q"), kv: kv(b), batch: batch(b), scores: scores(b), out: b("out"), lse: Some(b("lse")) }, "out lse", ""),
    (|b| Op::Glu { how: Gate::Silu, gate_up: b("gate_up"), f: 16, out: b("out") }, "out", ""),
    (|b| Op::Activate { how: Activation::Tanh, x: b("x"), out: b("out") }, "out", "x out"),
    (|b| Op::GatherRows { x: b("x"), rows: b("rows"), out: b("out") }, "out", ""),
    (|b| Op::Route { logits: b("logits"), how: routing(b), to: routes(b) }, "experts weights pairs places starts", ""),
    (|b| Op::MatmulExperts { x: b("x"), x_has: RowsOf::Rows, w: experts(b("w")), routes: routes(b), out: b("out") }, "out", ""),
    (|b| Op::MatmulExpertsCodes { x: b("x"), x_has: RowsOf::Rows, codes: codes(b), w: matrix(b("w")), routes: routes(b), out: b("out") },
        "w out", ""),
    (|b| Op::GluExperts { how: Gate::Silu, gate_up: b("gate_up"), f: 16, routes: routes(b), out: b("out") }, "out", ""),
    (|b| Op::Combine { y: b("y"), routes: routes(b), resid: Some(b("resid")), out: b("out") }, "out", "resid out"),
    (|b| Op::Head { x: b("x"), w: matrix(b("w")), targets: b("targets"), logits: Logits::times(1.0), tile: b("tile"), out: head_out(b) },
        "tile logprobs lse entropy", ""),
    (|b| Op::HeadTop { of: HeadSide { x: b("x"), w: matrix(b("w")), lse: b("lse"), logits: Logits::times(1.0), tile: b("tile") }, out: listed(b) },
        "tile ids listed", ""),
    (|b| Op::HeadListed { x: b("x"), w: matrix(b("w")), lse: b("lse"), logits: Logits::times(1.0), ids: b("ids"), logprobs: b("logprobs") },
        "logprobs", ""),
    (|b| Op::HeadDivergence { args: HeadDivergence {
        student: HeadSide { x: b("x"), w: matrix(b("w")), lse: b("lse"), logits: Logits::times(1.0), tile: b("tile") },
        teacher: head_teacher(b), how: Measure::Reverse, values: b("values"), means: b("means") } }, "tile teacher_tile values means", ""),
    (|b| Op::Sample { args: Sample { x: b("x"), w: matrix(b("w")), keys: b("keys"), how: SAMPLING, logits: Logits::times(1.0), tile: b("tile"),
        tokens: b("tokens"), out: head_out(b) } }, "tile tokens logprobs lse entropy", ""),
    (|b| Op::Advance { batch: batch(b), window: Some(Slots { slots: b("window_slots"), tables: b("window_tables") }), ids: b("ids"),
        tokens: b("tokens"), keys: b("keys") }, "positions slots segments window_slots ids keys", ""),
    (|b| Op::MatmulCodes { x: b("x"), codes: codes(b), w: matrix(b("w")),
        bias: None, resid: Some(b("resid")), out: b("out") }, "w out", "resid out"),
    (|b| Op::Dequantize { w: codes(b), out: matrix(b("out")) }, "out", ""),
    (|b| Op::Cast { src: b("src"), dst: b("dst") }, "dst", ""),
    (|b| Op::AdaptedDx { dy: b("dy"), of: adapted(b), du: b("du"), out: b("out") }, "out", ""),
    (|b| Op::AdaptBackwardU { dy: b("dy"), adapter: adapter(b, ["a", "b0", "b1"]), du: b("du") }, "du", ""),
    (|b| Op::AdaptBackwardW { args: AdaptBackward { x: b("x"), u: b("u"), dy: b("dy"), du: b("du"), pack: b("pack"),
        grads: adapter(b, ["da", "db0", "db1"]), add: false } }, "pack da db0 db1", ""),
    (|b| Op::MatmulDx { dy: b("dy"), w: matrix(b("w")), out: b("out"), add: false }, "out", ""),
    (|b| Op::MatmulDw { dy: b("dy"), x: b("x"), grad: matrix(b("grad")), add: false, pack: b("pack") }, "grad pack", ""),
    (|b| Op::BiasBackward { dy: b("dy"), grad: b("grad"), add: false }, "grad", ""),
    (|b| Op::RmsNormBackward { x: b("x"), norm: norm(b), dy: b("dy"), to: NormGrads { dx: b("dx"),
        rounded: Some(b("rounded")), dw: Some(b("dw")), add: false, rstd: b("rstd") } }, "dx rounded dw rstd", ""),
    (|b| Op::AttentionBackward { args: AttentionBackward { q: b("q"), kv: kv(b), batch: batch(b), scores: scores(b), out: b("out"),
        lse: b("lse"), dout: b("dout"), dq: b("dq"), dkv: b("dkv") } }, "dq dkv", ""),
    (|b| Op::SinkBackward { args: SinkBackward { sinks: b("sinks"), out: b("out"), lse: b("lse"), dout: b("dout"), grad: b("grad"),
        add: false } }, "grad", ""),
    (|b| Op::AddExpertBias { out: b("out"), bias: b("bias"), routes: routes(b), weighs: true }, "out", ""),
    (|b| Op::ExpertBiasBackward { args: ExpertBiasBackward { dy: b("dy"), dy_has: RowsOf::Pairs, routes: routes(b), weighs: true,
        grad: b("grad"), add: false } }, "grad", ""),
    (|b| Op::BiasWeightsBackward { dy: b("dy"), bias: b("bias"), routes: routes(b), d_weights: b("d_weights") }, "d_weights", ""),
    (|b| Op::RopeBackward { args: RopeBackward { dq: b("dq"), dkv: b("dkv"), rotation: Rotation::new(b("rope")), positions: b("positions"),
        heads: HEADS, norms: Some(QkNormBackward { norm: qk_norm(b), qkv: b("qkv"), dq_weight: Some(b("dq_weight")),
        dk_weight: Some(b("dk_weight")) }), dqkv: b("dqkv") } }, "dq_weight dk_weight dqkv", ""),
    (|b| Op::GluBackward { how: Gate::Silu, gate_up: b("gate_up"), f: 16, dout: b("dout"), d_gate_up: b("d_gate_up"), out: Some(b("out")) },
        "d_gate_up out", "gate_up d_gate_up dout out"),
    (|b| Op::MatmulExpertsDx { dy: b("dy"), dy_has: RowsOf::Pairs, w: experts(b("w")), routes: routes(b), out: b("out") }, "out", ""),
    (|b| Op::MatmulExpertsDw { args: ExpertsBackward { dy: b("dy"), dy_has: RowsOf::Pairs, x: b("x"), x_has: RowsOf::Rows, routes: routes(b),
        grad: experts(b("grad")), add: false, pack: b("pack") } }, "grad pack", ""),
    (|b| Op::AdaptExperts { x: b("x"), x_has: RowsOf::Rows, adapter: of_experts(b, ["a", "b0", "b1"]), routes: routes(b), u: b("u"),
        out: Some(b("out")) }, "u out", ""),
    (|b| Op::AdaptExpertsDx { dy: b("dy"), dy_has: RowsOf::Pairs, adapter: of_experts(b, ["a", "b0", "b1"]), routes: routes(b), du: b("du"),
        out: Some(b("out")) }, "du out", ""),
    (|b| Op::AdaptExpertsDw { args: AdaptExpertsBackward { x: b("x"), x_has: RowsOf::Rows, u: b("u"), dy: b("dy"), dy_has: RowsOf::Pairs,
        du: b("du"), routes: routes(b), grads: of_experts(b, ["da", "db0", "db1"]), add: false, pack: b("pack") } }, "pack da db0 db1", ""),
    (|b| Op::GluExpertsBackward { args: GluExpertsBackward { how: Gate::Silu, gate_up: b("gate_up"), f: 16, routes: routes(b), dout: b("dout"),
        d_weights: b("d_weights") } }, "gate_up dout d_weights", ""),
    (|b| Op::GluSharedBackward { args: GluSharedBackward { how: Gate::Silu, gate_up: b("gate_up"), f: 16, logits: b("logits"), dout: b("dout"),
        d_logits: b("d_logits") } }, "gate_up dout d_logits", ""),
    (|b| Op::RouteBackward { args: RouteBackward { logits: b("logits"), how: routing(b), routes: routes(b), d_weights: b("d_weights"),
        balance: Some(Balance { segments: b("segments"), factor: 1.0, rows: b("rows") }), d_logits: b("d_logits") } }, "rows d_logits", ""),
    (|b| Op::ActivateBackward { how: Activation::Relu, y: b("y"), dy: b("dy"), dx: b("dx") }, "dx", "dy dx"),
    (|b| Op::ScatterAddRows { src: b("src"), rows: b("rows"), dst: b("dst") }, "dst", ""),
    (|b| Op::HeadBackward { args: HeadBackward { x: b("x"), w: matrix(b("w")), targets: b("targets"), logits: Logits::times(1.0),
        head_out: head_out(b), dlogprobs: b("dlogprobs"), dentropy: b("dentropy"), listed: Some(listed_backward(b)), whole: Some(whole_backward(b)), tile: b("tile"), dtile: b("dtile"),
        pack: b("pack"), dx: b("dx"), grad: Some(matrix(b("grad"))), add: false } }, "teacher_tile tile dtile pack dx grad", ""),
    (|b| Op::EmbedBackward { d: b("d"), ids: b("ids"), grad: matrix(b("grad")) }, "grad", ""),
    (|b| Op::EmbedBackwardPart { d: b("d"), ids: b("ids"), k: 16, layout: MatrixLayout::Rows, owned: &[], shard: b("shard") }, "shard", ""),
    (|b| Op::Accumulate { src: b("src"), dst: b("dst"), add: true }, "dst", ""),
    (|b| Op::Fold { parts: vec![b("first"), b("second")].leak(), dst: b("dst"), add: false }, "dst", ""),
    (|b| Op::AdamW { how: ADAMW, bufs: AdamWBufs { weights: b("weights"), grad: b("grad"), m: b("m"), v: b("v"),
        scales: Some([b("scales m"), b("scales v")]), master: Some(b("master")) } },
        "weights m v scales m scales v master", ""),
    (|b| Op::WriteCodes { src: b("src"), dst: coded(b) }, "codes scales", ""),
    (|b| Op::Momentum { how: Momentum { rest: 0.1, nesterov: true, grad_scale: 1.0 }, grad: b("grad"), m: b("m") }, "grad m", ""),
    (|b| Op::Arrange { src: matrix(b("src")), dst: matrix(b("dst")), what: Arrange::whole(16, true) }, "dst", ""),
    (|b| Op::Descend { how: Descent { keep: 1.0, rate: 0.1 }, direction: b("direction"), weights: b("weights"), master: Some(b("master")) },
        "weights master", ""),
    (|b| Op::MoveColumns { args: MoveColumns { from: Columns::of_rows(b("from"), 0, 16), to: Columns::of_rows(b("to"), 0, 16), rows: 1, heads: 1,
        columns: 16, order: ColumnOrder::Same, add: false } }, "to", ""),
    (|b| Op::MatmulHeads { args: HeadProducts { x: Columns::of_rows(b("x"), 0, 4), w: Matrix { n: 4, k: 4, ..matrix(b("w")) },
        part: HeadPart { first: 0, step: 4, rows: 4 }, y: Columns::of_rows(b("y"), 0, 4), rows: 1, heads: 1, is_turned: false,
        x_room: b("x_room"), y_room: b("y_room") } }, "y x_room y_room", ""),
    (|b| Op::Zero { dst: b("dst") }, "dst", ""),
    (|b| Op::LayerNorm { x: b("x"), norm: layer_norm(b), out: b("out") }, "out", ""),
    (|b| Op::LayerNormBackward { x: b("x"), norm: layer_norm(b), dy: b("dy"), to: LayerNormGrads { dx: b("dx"), rounded: Some(b("rounded")),
        dw_db: Some((b("dw"), b("db"))), add: false, stats: b("stats") } }, "dx rounded dw db stats", ""),
    (|b| Op::Gelu { how: Gelu::Erf, x: b("x"), out: b("out") }, "out", "x out"),
    (|b| Op::GeluBackward { how: Gelu::Erf, x: b("x"), dy: b("dy"), dx: b("dx") }, "dx", "dy dx"),
    (|b| Op::WeighRows { x: b("x"), by: b("by"), out: b("out"), add: true }, "out", ""),
    (|b| Op::ReplaceRows { src: b("src"), rows: b("rows"), dst: b("dst") }, "dst", ""),
    (|b| Op::NextPlaces { places: b("places") }, "places", ""),
    (|b| Op::Rope { qkv: b("qkv"), norms: None, rotation: Rotation { axes: Some(Axes { places: b("places"), of: RopeAxes::Runs([8, 0, 0]) }),
        ..Rotation::new(b("rope")) }, batch: batch(b), kv: kv(b), q_out: b("q_out") }, "keys values q_out", ""),
];

/// The operation over `bufs` in order, and the operands' names; `alias` gives one of them another buffer.
fn made(
    case: &Case,
    bufs: &[Buf<'static>],
    alias: Option<(&str, Buf<'static>)>,
) -> (Op<'static>, Vec<&'static str>) {
    let mut names = Vec::new();
    let op = case.0(&mut |name| {
        names.push(name);
        alias.filter(|(of, _)| *of == name).map_or(bufs[names.len() - 1], |(_, buf)| buf)
    });
    (op, names)
}

/// The message of the panic, if there is one.
fn refusal(dev: &dyn Device, op: Op<'_>) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(|| dev.run(op))).err()?;
    Some(payload.downcast_ref::<String>().expect("a message").clone())
}

#[test]
fn an_output_overlaps_no_other_operand() {
    let bufs = buffers(24);
    let dev = Counter::new(false);
    for case in CASES {
        let before = dev.launched.load(Ordering::Relaxed);
        let (op, names) = made(case, &bufs, None);
        assert_eq!(refusal(&dev, op), None, "{}", op.name());
        assert_eq!(dev.launched.load(Ordering::Relaxed), before + 1, "{} runs", op.name());
        let writes = |name: &str| format!(" {} ", case.1).contains(&format!(" {name} "));
        let pairs: Vec<&str> = case.2.split_whitespace().collect();
        for (i, a) in names.iter().enumerate() {
            for (j, b) in names.iter().enumerate().filter(|&(j, _)| j != i) {
                let in_place = pairs.chunks(2).any(|pair| pair == [*a, *b] || pair == [*b, *a]);
                let what = format!("{}: {a} is {b}", op.name());
                // The same buffer, and one that overlaps it by one element.
                let same = refusal(&dev, made(case, &bufs, Some((a, bufs[j]))).0);
                assert_eq!(same.is_some(), (writes(a) || writes(b)) && !in_place, "{what}: {same:?}");
                if same.is_some() {
                    assert!(same.is_some_and(|m| m.starts_with(&format!("{} writes ", op.name()))), "{what}");
                }
            }
        }
    }
}

#[test]
fn in_place_is_the_same_buffer_and_not_a_part_of_it() {
    let bufs = buffers(3);
    let dev = Counter::new(false);
    let all = buffers(1)[0];
    let (front, back) = (all.slice(0, 128), all.slice(64, 128));
    let message = refusal(&dev, Op::Activate { how: Activation::Tanh, x: front, out: back });
    assert_eq!(
        message.as_deref(),
        Some("activate writes out (bytes 256..768), which overlaps x (bytes 0..512) of activate")
    );
    // Ends that touch do not overlap, and two inputs may be one.
    let (front, back) = (all.slice(0, 128), all.slice(128, 128));
    assert_eq!(refusal(&dev, Op::RmsNorm { x: front, norm: Norm::new(front, 0.0), out: back }), None);
    assert_eq!(
        refusal(&dev, Op::MatmulAdd { x: bufs[0], w: matrix(bufs[1]), resid: bufs[2], out: bufs[2] }),
        None
    );
    // In place for one input is not in place for the other.
    let both = Op::MatmulAdd { x: bufs[2], w: matrix(bufs[1]), resid: bufs[2], out: bufs[2] };
    assert!(refusal(&dev, both).is_some());
}

#[test]
fn no_operand_touches_the_scratch() {
    let bufs = buffers(3);
    let mut dev = Counter::new(true);
    dev.claims.reserve(bufs[2]);
    assert_eq!(refusal(&dev, Op::Cast { src: bufs[0], dst: bufs[1] }), None);
    let message = refusal(&dev, Op::Cast { src: bufs[2], dst: bufs[1] });
    assert_eq!(message.as_deref(), Some("cast: src overlaps the device's scratch"));
}

#[test]
fn bytes_that_are_read_and_written_count_twice() {
    const ONE: u64 = 256 * 4;
    let bufs = buffers(4);
    let product = |add| Op::Matmul { x: bufs[0], w: matrix(bufs[1]), bias: None, out: bufs[2], add };
    let bytes = |op: Op<'_>| op.work().bytes / ONE;
    assert_eq!([false, true].map(|add| bytes(product(add))), [3, 4]);
    let accumulate = |add| Op::Accumulate { src: bufs[0], dst: bufs[1], add };
    assert_eq!([false, true].map(|add| bytes(accumulate(add))), [2, 3]);
    let how = Momentum { rest: 0.1, nesterov: false, grad_scale: 1.0 };
    assert_eq!(bytes(Op::Momentum { how, grad: bufs[0], m: bufs[1] }), 4);
}

/// Runs `other` while another thread is inside a norm of the buffers 0 and 1 to buffer 2.
fn while_a_norm_runs(is_serial: bool, other: impl Fn(&Counter, &[Buf<'static>])) -> Option<String> {
    let bufs = buffers(5);
    let gate = Some((Barrier::new(2), Barrier::new(2)));
    let dev = Counter { gate, ..Counter::new(is_serial) };
    let (begun, end) = dev.gate.as_ref().expect("made above");
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            dev.rms_norm(bufs[0], Norm::new(bufs[1], 1e-6), bufs[2]);
            // Its claim has ended: what it wrote may be written again.
            dev.zero(bufs[2]);
        });
        begun.wait();
        let caught = catch_unwind(AssertUnwindSafe(|| other(&dev, &bufs))).err();
        send.send(caught.map(|p| p.downcast_ref::<String>().expect("a message").clone()))
            .expect("received below");
        end.wait();
    });
    receive.recv().expect("sent above")
}

#[test]
fn threads_share_what_they_read_and_nothing_that_one_writes() {
    let free: [fn(&Counter, &[Buf<'static>]); 4] = [
        |dev, b| dev.cast(b[0], b[3]),
        |dev, b| dev.zero(b[3]),
        |dev, b| dev.read_f32(b[0], 0, &mut [0.0; 256]),
        |dev, b| dev.write_f32(b[4], 0, &[0.0; 256]),
    ];
    for other in free {
        assert_eq!(while_a_norm_runs(false, other), None);
    }
    let taken: [fn(&Counter, &[Buf<'static>]); 5] = [
        |dev, b| dev.zero(b[0]),
        |dev, b| dev.cast(b[2], b[3]),
        |dev, b| dev.read_f32(b[2], 0, &mut [0.0; 256]),
        |dev, b| dev.write_f32(b[1], 200, &[0.0; 8]),
        |dev, b| dev.cast(b[3], b[2]),
    ];
    for other in taken {
        let message = while_a_norm_runs(false, other).expect("refused");
        assert!(
            message.ends_with("of rms_norm under way on another thread")
                || message.contains("rms_norm writes"),
            "{message}"
        );
    }
}

#[test]
fn a_serial_device_runs_one_operation_and_copies_meanwhile() {
    let message = while_a_norm_runs(true, |dev, b| dev.zero(b[3]));
    assert_eq!(message.as_deref(), Some("zero: rms_norm is under way on another thread"));
    assert_eq!(while_a_norm_runs(true, |dev, b| dev.read_f32(b[0], 0, &mut [0.0; 256])), None);
    assert!(while_a_norm_runs(true, |dev, b| dev.read_f32(b[2], 0, &mut [0.0; 256])).is_some());
}

#[test]
fn copies_of_offloaded_memory_have_one_end_in_the_arena() {
    let mut layout = Layout::new();
    for name in ["a", "b"] {
        layout.offloaded(name, "test", &[8], DType::F32).unwrap();
    }
    let mut arena = Arena::new(ArenaMap::new(&layout, 0));
    let (resident, _) = arena.split();
    let (a, b) = (resident.buf("a"), resident.buf("b"));
    let dev = Counter::new(false);
    let copy = || dev.offload_in(0, &mut [(a, b)].into_iter());
    assert!(catch_unwind(AssertUnwindSafe(copy)).is_err());
}
