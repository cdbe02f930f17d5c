//! Prompts with images: the log-probability that the rollout records is that of the update, to the bit, however samples
//! are scheduled and whichever images are there. What a tower gives is random numbers here.

use crate::common::harness::{Setup, read, same_bits};
use crate::common::{DRAFTS, World, sampling, sequences};
use plimsoll_arch::{Caches, SightSpec};
use plimsoll_base::{DType, Phase, PhaseSet};
use plimsoll_device::Device;
use plimsoll_memory::{Buf, Layout};
use plimsoll_model::tower::VectorTable;
use plimsoll_model::{
    Activations, ImageLimits, ImageRegions, Mode, PassLimits, Recompute, SeenImages, TextImage, head,
    images_layout, layers, vectors_layout,
};
use plimsoll_rollout::{Engine, EngineLimits, Model, NeverStop, OnFull, Request, Samples, SoFar};
use plimsoll_train::{PackLimits, Packer};

const ROLLOUT: Mode = Mode::Rollout { truncates: false };
const UPDATE: Mode = Mode::Update(Recompute::None);
const NEW_TOKENS: usize = 20;
const GROUP: usize = 3;
const IMAGES: [TextImage; 3] = [
    TextImage { first: 0, rows: 4, columns: 5, at: 12 },
    TextImage { first: 20, rows: 1, columns: 3, at: 0 },
    TextImage { first: 23, rows: 3, columns: 3, at: 3 },
];
const VECTORS: usize = 32;
const PROMPT_TOKENS: usize = 48;

/// A model that sees, with a prompt of an image, one of an image twice and another, and one of text.
struct Asked {
    sight: SightSpec,
    prompts: Vec<Vec<u32>>,
}

impl Asked {
    fn new() -> Asked {
        let model = setup(pass(64)).open();
        let (sight, vocab) = (model.sight().unwrap().expect("a model that sees"), model.spec.vocab);
        let image = |n: usize| {
            let TextImage { first, rows, columns, .. } = IMAGES[n];
            (first..first + rows * columns).map(|vector| vocab + vector).collect::<Vec<_>>()
        };
        let prompts = vec![
            [vec![5, 6], image(0), vec![7]].concat(),
            [image(1), vec![9, 3, 4, 5], image(2), vec![8], image(1), vec![1, 2]].concat(),
            (3..24).collect(),
        ];
        Asked { sight, prompts }
    }

    /// Regions of images in the phases of both modes.
    fn regions(&self, setup: &Setup, rows: usize) -> Layout {
        let mut layout = Layout::new();
        for mode in [ROLLOUT, UPDATE] {
            let limits = ImageLimits { rows, image_rows: rows };
            layout.extend(images_layout(&self.sight, setup.target(), mode, limits).unwrap());
        }
        let (tower, pool) = (&self.sight.tower, setup.target().pool);
        layout.extend(
            vectors_layout("vectors", tower, pool, PhaseSet::of(&[Phase::Rollout, Phase::Update]), VECTORS)
                .unwrap(),
        );
        layout
    }

    /// Fills the table of vectors with numbers, and returns its images.
    fn seen<'a>(&self, dev: &dyn Device, regions: ImageRegions<'a>, table: Buf<'a>) -> SeenImages<'_, 'a> {
        let numbers: Vec<f32> = (0..table.len()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0).collect();
        dev.write_f32(table, 0, &numbers);
        let vectors = VectorTable::new(&self.sight.tower, table);
        SeenImages { spec: &self.sight, regions, vectors, d_vectors: None, images: &IMAGES }
    }

    /// Draws responses; `begun`: the first tokens of each, whose keys are computed again.
    fn draw(
        &self,
        limits: EngineLimits,
        on_full: OnFull,
        threads: usize,
        begun: Option<&Samples>,
    ) -> (Samples, u64) {
        let setup = Setup { threads, ..setup(pass(64)) };
        let more = self.regions(&setup, 256);
        let mut world = World::with(setup, limits, false, more);
        let mut parts = world.harness.parts();
        let phase = parts.overlay.enter(Phase::Rollout);
        let seen = self.seen(parts.dev, ImageRegions::bind(&phase, ROLLOUT), phase.buf("vectors"));
        let mut engine = Engine::new(limits, on_full);
        engine.take_images();
        let mut out = Samples::with_capacity(limits.samples, NEW_TOKENS);
        let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
        let model = Model {
            dev: parts.dev,
            decoder: &parts.decoder,
            acts: Activations::bind(&phase, ROLLOUT, limits.pass()),
            sight: Some(seen),
        };
        let request = Request {
            prompts: &prompts,
            group_size: GROUP,
            max_new_tokens: NEW_TOKENS,
            sampling: sampling(1.0, 7),
            eos: &[],
            first_sample_id: 0,
            numbers: &[],
        };
        let begun: Vec<SoFar<'_>> = begun.map_or(Vec::new(), |from| {
            let of = |s| SoFar::Tokens { ids: &from.ids(s)[..s], logprobs: &from.logprobs(s)[..s] };
            (0..from.len()).map(of).collect()
        });
        let stats = engine.run_from(model, &request, &begun, &mut NeverStop, &mut out).unwrap();
        (out, stats.preemptions)
    }

    /// Log-probabilities of all responses by the update's forward pass.
    fn trained(&self, drawn: &Samples, rows: usize, threads: usize) -> Vec<Vec<f32>> {
        let setup = Setup { threads, ..setup(pass(rows)) };
        let more = self.regions(&setup, rows);
        let mut world = World::with(setup, engine(1, 1, 64), false, more);
        let parts = &mut world.harness.parts();
        let phase = parts.overlay.enter(Phase::Update);
        let acts = Activations::bind(&phase, UPDATE, pass(rows));
        let seen = self.seen(parts.dev, ImageRegions::bind(&phase, UPDATE), phase.buf("vectors"));
        let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
        let all = sequences(&prompts, drawn, GROUP);
        let (mut packer, mut first) = (Packer::new(pass(rows), 0), 0);
        let mut found: Vec<Vec<f32>> = all.iter().map(|s| vec![f32::NAN; s.response.len()]).collect();
        while first < all.len() {
            let batch = packer.pack(&all, first).unwrap();
            let (mut index, heads) = (batch.index.clone(), batch.head.to_vec());
            first = batch.sequences.end;
            let vocab = parts.decoder.spec.vocab;
            let pass = seen.upload_texts(parts.dev, acts, &mut index, vocab).unwrap();
            layers(parts.dev, &parts.decoder, &pass);
            head(parts.dev, &parts.decoder, &pass, 1.0);
            let logprobs = read(parts.dev, pass.head_out().logprobs);
            heads.iter().zip(logprobs).for_each(|(at, x)| found[at.sequence as usize][at.token as usize] = x);
        }
        found
    }
}

fn setup(pass: PassLimits) -> Setup {
    Setup::new("qwen3_vl", DType::F32, pass)
}

fn pass(rows: usize) -> PassLimits {
    let caches = Caches::paged(0);
    PackLimits { micro_batch_tokens: rows, prompt_tokens: PROMPT_TOKENS, segments: 16, caches }.pass()
}

fn engine(sequences: usize, rows: usize, blocks: usize) -> EngineLimits {
    EngineLimits {
        sequences,
        rows: rows.max(sequences),
        samples: 3 * GROUP,
        prompt_tokens: PROMPT_TOKENS,
        new_tokens: NEW_TOKENS,
        ahead: false,
        listed: 0,
        own: plimsoll_model::OwnLogits::NONE,
        caches: Caches::paged(blocks),
        drafts: None,
    }
}

#[test]
fn what_follows_an_image_has_the_bits_of_the_update_however_it_is_scheduled() {
    let asked = Asked::new();
    let (drawn, _) = asked.draw(engine(9, 256, 64), OnFull::WorstCase, 1, None);
    let mut preemptions = 0;
    for (limits, on_full, threads, goes_on) in [
        (engine(1, 64, 64), OnFull::WorstCase, 1, false),
        (engine(4, 7, 64), OnFull::WorstCase, 2, false),
        (engine(9, 33, 7), OnFull::Preempt, 1, false),
        (EngineLimits { ahead: true, ..engine(9, 48, 64) }, OnFull::WorstCase, 1, false),
        (EngineLimits { drafts: Some(DRAFTS), ..engine(9, 48, 64) }, OnFull::WorstCase, 1, false),
        (EngineLimits { drafts: Some(DRAFTS), ahead: true, ..engine(9, 33, 7) }, OnFull::Preempt, 1, true),
        (engine(5, 20, 64), OnFull::WorstCase, 1, true),
    ] {
        let (other, count) = asked.draw(limits, on_full, threads, goes_on.then_some(&drawn));
        preemptions += count;
        for s in 0..drawn.len() {
            let same = drawn.ids(s) == other.ids(s) && same_bits(drawn.logprobs(s), other.logprobs(s));
            assert!(same, "{limits:?}: sample {s}: {:?} and {:?}", drawn.logprobs(s), other.logprobs(s));
        }
    }
    assert!(preemptions > 0, "the blocks were to run out");
    for (rows, threads) in [(70, 2), (256, 1)] {
        for (s, trained) in asked.trained(&drawn, rows, threads).iter().enumerate() {
            assert!(same_bits(trained, drawn.logprobs(s)), "{rows} rows: sample {s}: {trained:?}");
        }
    }
}
