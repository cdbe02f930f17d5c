//! Models that see against what Hugging Face transformers computes in float32: towers, and texts with images.
//!
//! Tolerances are those of `golden`: they are about four times what the same numbers computed in float64 differ by.

mod adapters;

use crate::common::{AnyDevice, Machine, golden_dir, whole_sequences};
use plimsoll_arch::{Cache, Caches, ModelSpec, SightSpec, TokenRun};
use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_device::{Device, Matrix, MatrixLayout, NO_PARENT, Sampling, TowerPasses, draw_key};
use plimsoll_files::OpenModel;
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout};
use plimsoll_model::tower::{
    PatchGrid, Tower, TowerGradients, TowerIndex, TowerLimits, TowerParams, TowerPass, TowerRegions,
    VectorTable, load_tower, tower_backward, tower_forward, tower_layout, tower_rope_layout, tower_table,
};
use plimsoll_model::{
    Activations, Decoder, Derivatives, ImageIndex, ImageLimits, ImageRegions, Mode, ParamTable, Params, Pass,
    PassIndex, PassLimits, Recompute, SeenImages, TextImage, TextPlaces, VectorGradients, activations_layout,
    advance, backward, draw, head, images_layout, layers, load, rope, upload_keys, vectors_layout,
};
use safetensors::SafeTensors;

const LIMITS: PassLimits = PassLimits {
    rows: 160,
    head_rows: 160,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 3,
    table_entries: 16,
    copies: 0,
    caches: Caches::paged(16).and(Cache::State, 12),
};
const IMAGE_LIMITS: ImageLimits = ImageLimits { rows: 160, image_rows: 40 };
const VECTORS: usize = 32;
const TOWER_LIMITS: TowerLimits = TowerLimits { patches: 96, images: 2 };
const RANK: u32 = 4;
const UPDATE: Mode = Mode::Update(Recompute::None);

struct Reference(Vec<u8>);

impl Reference {
    fn open(model: &str) -> Reference {
        Reference(std::fs::read(golden_dir(model).join("reference.safetensors")).unwrap())
    }

    fn data(&self, name: &str) -> Vec<u8> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).unwrap_or_else(|_| panic!("{name}")).data().to_vec()
    }

    fn f32s(&self, name: &str) -> Vec<f32> {
        self.data(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn numbers(&self, name: &str) -> Vec<u32> {
        self.data(name).as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
    }

    fn grids(&self) -> Vec<PatchGrid> {
        let grid = |of: &[u32; 3]| PatchGrid { rows: of[1], columns: of[2] };
        self.numbers("image_grid_thw").as_chunks::<3>().0.iter().map(grid).collect()
    }
}

#[track_caller]
fn close(what: &str, ours: &[f32], theirs: &[f32], bound: f32) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let d = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("images {what}: differ by at most {d:e}");
    assert!(d < bound, "{what}: differ by {d}, at most {bound}");
}

fn read(dev: &dyn Device, buf: Buf<'_>) -> Vec<f32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    out
}

/// A model that sees, in an arena of its own.
struct Seeing {
    model: OpenModel,
    spec: ModelSpec,
    sight: SightSpec,
    tables: [ParamTable; 2],
    arena: Arena,
    dev: AnyDevice,
    dtype: DType,
    reference: Reference,
}

impl Seeing {
    fn open(name: &str, mode: Mode, threads: usize, machine: Machine) -> Seeing {
        Seeing::open_in(DType::F32, name, mode, threads, machine)
    }

    fn open_in(dtype: DType, name: &str, mode: Mode, threads: usize, machine: Machine) -> Seeing {
        let model = OpenModel::open(golden_dir(name).to_str().unwrap(), None, false).unwrap();
        // The reference gives placeholders their probability.
        let spec = ModelSpec { suppressed: TokenRun::default(), ..model.spec };
        let sight = model.sight().unwrap().unwrap();
        let (kind, target) = (machine.kind(), machine.target(threads));
        let tables = [ParamTable::new(&spec, kind, dtype), tower_table(&sight.tower, kind, dtype)];
        let mut layout = Layout::new();
        for (what, table) in ["actor", "tower"].iter().zip(&tables) {
            for of in ["weights", "grads"] {
                let (name, shape) = (format!("{what}.{of}"), [table.elements]);
                layout.arena(&name, "test", target.pool, PhaseSet::RESIDENT, &shape, dtype).unwrap();
            }
        }
        let adapters = adapters::table(&spec, &sight, kind, dtype);
        for name in ["adapters", "adapters.grads"] {
            let shape = [adapters.tower_run().elements];
            layout.arena(name, "test", target.pool, PhaseSet::RESIDENT, &shape, dtype).unwrap();
        }
        layout.extend(rope::layout(&spec, 128, target.pool).unwrap());
        layout.extend(tower_rope_layout("tower.rope", &sight.tower, 16, target.pool).unwrap());
        let TowerLimits { patches, images } = TOWER_LIMITS;
        let passes = TowerPasses { spec: sight.tower, patches, images, rank: Some(RANK) };
        layout.extend(machine.scratch_and(&spec, dtype, threads, LIMITS, Some(passes)));
        layout.extend(activations_layout(&spec, dtype, target, mode, LIMITS).unwrap());
        layout.extend(tower_layout(&sight.tower, dtype, target, mode, TOWER_LIMITS, Some(RANK)).unwrap());
        layout.extend(images_layout(&sight, target, mode, IMAGE_LIMITS).unwrap());
        for name in ["vectors", "d_vectors"] {
            let (tower, phases) = (&sight.tower, PhaseSet::of(&[mode.phase()]));
            layout.extend(vectors_layout(name, tower, target.pool, phases, VECTORS).unwrap());
        }
        let mut arena = Arena::new(ArenaMap::new(&layout, 0));
        let dev = machine.open(&mut arena, threads);
        Seeing { model, spec, sight, tables, arena, dev, dtype, reference: Reference::open(name) }
    }

    /// Loads the weights and runs `of` in the phase of a mode.
    fn run<T>(&mut self, mode: Mode, of: impl FnOnce(&Run<'_>) -> T) -> T {
        let (resident, mut overlay) = self.arena.split();
        let (dev, dtype) = (self.dev.as_dyn(), self.dtype);
        let bind = |of: &str| Params::bind(&self.spec, &self.tables[0], dtype, resident.buf(of));
        let tower = &self.sight.tower;
        let of_tower = |of: &str| TowerParams::bind(tower, &self.tables[1], dtype, resident.buf(of));
        let (params, grads) = (bind("actor.weights"), bind("actor.grads"));
        load(dev, &self.model, &self.tables[0], &params, 0, Bytes::mib(1)).unwrap();
        let (of_rope, rope) = (resident.buf("rope.table"), resident.buf("tower.rope"));
        rope::fill(dev, &self.spec, of_rope);
        let tower = Tower { spec: *tower, params: of_tower("tower.weights"), rope };
        load_tower(dev, &self.model, &self.tables[1], &tower.params, 0, Bytes::mib(1)).unwrap();
        tower.fill_rope(dev);
        let decoder = Decoder { spec: self.spec, dtype, params, rope: of_rope };
        let phase = overlay.enter(mode.phase());
        of(&Run {
            dev,
            sight: &self.sight,
            reference: &self.reference,
            acts: Activations::bind(&phase, mode, LIMITS),
            tower_regions: TowerRegions::bind(&phase, mode),
            images: ImageRegions::bind(&phase, mode),
            vectors: VectorTable::new(&self.sight.tower, phase.buf("vectors")),
            d_vectors: VectorTable::new(&self.sight.tower, phase.buf("d_vectors")),
            grads: &grads,
            tower_grads: &of_tower("tower.grads"),
            tower: &tower,
            decoder: &decoder,
            tables: &self.tables,
            adapters: ["adapters", "adapters.grads"].map(|name| resident.buf(name)),
        })
    }
}

struct Run<'a> {
    dev: &'a dyn Device,
    sight: &'a SightSpec,
    reference: &'a Reference,
    acts: Activations<'a>,
    tower_regions: TowerRegions<'a>,
    images: ImageRegions<'a>,
    vectors: VectorTable<'a>,
    d_vectors: VectorTable<'a>,
    grads: &'a Params<'a>,
    tower_grads: &'a TowerParams<'a>,
    tower: &'a Tower<'a>,
    decoder: &'a Decoder<'a>,
    tables: &'a [ParamTable; 2],
    /// Adapters of the tower, and their gradients.
    adapters: [Buf<'a>; 2],
}

/// Numbers of the rows of the three sequences, and the places of all of them.
struct Texts {
    ids: Vec<Vec<u32>>,
    places: Vec<[u32; 3]>,
}

impl<'a> Run<'a> {
    /// Computes the vectors of images, one after the other.
    fn see(&self, grids: &[PatchGrid], patches: &[f32]) -> TowerPass<'a> {
        let index = TowerIndex::of(&self.sight.tower, grids);
        let pass = TowerPass::upload(self.dev, self.tower_regions, &index, patches);
        tower_forward(self.dev, self.tower, &pass, &self.vectors, 0);
        pass
    }

    fn vectors(&self, set: usize, first: usize, count: usize) -> Vec<f32> {
        read(self.dev, self.vectors.part(set, first, count))
    }

    /// Returns the images of the first sequence.
    fn images(&self) -> Vec<TextImage> {
        let (mut first, merge) = (0, self.sight.tower.merge);
        let mut image = |grid: &PatchGrid| {
            let [rows, columns] = [grid.rows, grid.columns].map(|side| side / merge);
            let image = TextImage { first, rows, columns, at: first };
            first += rows * columns;
            image
        };
        self.reference.grids().iter().map(&mut image).collect()
    }

    /// Returns the sequences with numbers of vectors where images are; checks their places.
    fn texts(&self) -> Texts {
        let (vocab, token) = (self.decoder.spec.vocab, self.sight.image_token);
        let images = self.images();
        let (mut texts, mut vector) = (Texts { ids: vec![], places: vec![] }, vocab..);
        for i in 0..3 {
            let number = |id: u32| if i == 0 && id == token { vector.next().unwrap() } else { id };
            let ids = self.reference.numbers(&format!("seq{i}.input_ids"));
            let ids: Vec<u32> = ids.into_iter().map(number).collect();
            let own = if i == 0 { &images[..] } else { &[] };
            let of_text = TextPlaces::of(&ids, vocab, own).unwrap();
            let places: Vec<[u32; 3]> = (0..ids.len()).map(|row| of_text.at(row)).collect();
            if i == 0 {
                let theirs = self.reference.numbers("seq0.positions");
                let same = (0..3).all(|axis| {
                    places
                        .iter()
                        .map(|at| at[axis])
                        .eq(theirs[axis * ids.len()..][..ids.len()].iter().copied())
                });
                assert!(same, "{places:?}, {theirs:?}");
                let delta = of_text.at(ids.len())[0].wrapping_sub(ids.len() as u32);
                assert_eq!(delta, self.reference.numbers("seq0.rope_delta")[0]);
            }
            texts.places.extend(places);
            texts.ids.push(ids);
        }
        texts
    }

    fn seen<'m>(&'m self, images: &'m [TextImage]) -> SeenImages<'m, 'a> {
        let (vectors, d_vectors) = (self.vectors, Some(VectorGradients::Added(self.d_vectors)));
        SeenImages { spec: self.sight, regions: self.images, vectors, d_vectors, images }
    }

    /// Uploads a pass over sequences.
    fn pass(&self, ids: &[Vec<u32>], places: Option<&[[u32; 3]]>) -> Pass<'a> {
        let sequences: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let mut index: PassIndex = whole_sequences(&sequences);
        let vocab = self.decoder.spec.vocab;
        for target in index.targets.iter_mut().filter(|target| **target >= vocab) {
            *target = self.sight.image_token;
        }
        let pass = match places {
            Some(places) => {
                index.places.extend(places.as_flattened());
                let (images, taken) = (self.images(), &mut ImageIndex::default());
                self.seen(&images).upload(self.dev, self.acts, (&mut index, taken), vocab)
            }
            None => Pass::upload(self.dev, self.acts, &index),
        };
        layers(self.dev, self.decoder, &pass);
        head(self.dev, self.decoder, &pass, 1.0);
        pass
    }

    /// Adds the gradients of the mean over all targets but the first two of each sequence.
    fn backward(&self, ids: &[Vec<u32>], pass: &Pass<'_>) {
        let count = ids.iter().map(|ids| ids.len() - 3).sum::<usize>() as f32;
        let of = |ids: &Vec<u32>| {
            let n = ids.len();
            (0..n).map(move |i| if i >= 2 && i + 1 < n { -1.0 / count } else { 0.0 }).collect::<Vec<_>>()
        };
        let d: Vec<f32> = ids.iter().flat_map(of).collect();
        let zeros = vec![0.0; d.len()];
        let of =
            Derivatives::Vocabulary { inv_temperature: 1.0, logprobs: &d, entropy: &zeros, divergence: &[] };
        self.dev.zero(self.grads.all);
        self.dev.zero(self.d_vectors.all);
        backward(self.dev, self.decoder, self.grads, true, pass, of);
    }

    /// Compares the gradients of a table with those of the reference.
    fn check_gradients(&self, name: &str, table: &ParamTable, all: Buf<'_>) {
        let layout = MatrixLayout::of_weights(table.device, DType::F32);
        for param in &table.params {
            let buf = all.slice(param.offset as usize, param.elements as usize);
            let width = param.k.max(1) as usize;
            let ours = if param.is_vector() {
                read(self.dev, buf)
            } else {
                let mut out = vec![0.0; param.n as usize * width];
                self.dev.read_rows(Matrix::new(buf, param.n as usize, width, layout), 0, &mut out);
                out
            };
            let mut at = 0;
            for part in &param.parts {
                let n = part.rows as usize * width;
                let stored = match part.name.strip_prefix("model.") {
                    Some(rest) if !rest.starts_with("visual.") => format!("model.language_model.{rest}"),
                    _ => part.name.clone(),
                };
                let theirs = match of_expert(&stored) {
                    None => self.reference.f32s(&format!("grad.{stored}")),
                    Some((all, expert, half)) => {
                        let matrix = self.reference.f32s(&format!("grad.{all}"));
                        matrix[(expert * half[1] + half[0]) * n..][..n].to_vec()
                    }
                };
                let bound = if name == "qwen3_5_vl" { OF_LINEAR } else { 1.5e-6 };
                close(&format!("{name} {stored}"), &ours[at..at + n], &theirs, bound);
                at += n;
            }
        }
    }
}

/// Returns the tensor of all experts that has one expert's matrix, the expert, and which of how many matrices it is.
fn of_expert(name: &str) -> Option<(String, usize, [usize; 2])> {
    let (layer, rest) = name.split_once(".experts.")?;
    let (expert, matrix) = rest.split_once('.')?;
    let (all, half) = match matrix {
        "gate_proj.weight" => ("gate_up_proj", [0, 2]),
        "up_proj.weight" => ("gate_up_proj", [1, 2]),
        _ => ("down_proj", [0, 1]),
    };
    Some((format!("{layer}.experts.{all}"), expert.parse().ok()?, half))
}

/// Bound of gradients through linear attention, which transformers computes by chunks of 64 tokens in f32: there its
/// own logits of decode and of a whole pass differ by 3e-5.
const OF_LINEAR: f32 = 4e-5;

#[test]
fn towers_agree_with_transformers_and_an_image_has_its_own_bits() {
    for (name, deep) in [("qwen3_vl", 2), ("qwen3_5_vl", 0), ("qwen2_5_vl", 0), ("qwen3_vl_moe", 1)] {
        for machine in Machine::all() {
            let mut bits: Option<Vec<u32>> = None;
            for (mode, threads) in [(UPDATE, 1), (UPDATE, 3), (Mode::Score, 2)] {
                let mut seeing = Seeing::open(name, mode, threads, machine);
                let got = seeing.run(mode, |run| {
                    let (grids, patches) = (run.reference.grids(), run.reference.f32s("pixel_values"));
                    run.see(&grids, &patches);
                    let mut all = Vec::new();
                    for set in 0..=deep {
                        for (image, first, count) in [(0, 0, 15), (1, 15, 6)] {
                            let of = match set {
                                0 => format!("image{image}.features"),
                                _ => format!("image{image}.deepstack{}", set - 1),
                            };
                            let ours = run.vectors(set, first, count);
                            close(&format!("{name} {of}"), &ours, &run.reference.f32s(&of), 7e-6);
                            all.extend(ours);
                        }
                    }
                    // The second image alone.
                    let second = run.vectors(0, 15, 6);
                    run.see(&grids[1..], &patches[grids[0].patches() * 96..]);
                    let alone = run.vectors(0, 0, 6);
                    let same = second.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{name} {machine:?}: an image's bits depend on others");
                    all.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                });
                let first = bits.get_or_insert_with(|| got.clone());
                assert!(*first == got, "{name} {machine:?}: bits depend on threads, or on a backward pass");
            }
        }
    }
}

#[test]
fn texts_with_images_and_their_gradients_agree_with_transformers() {
    for name in ["qwen3_vl", "qwen3_5_vl", "qwen2_5_vl", "qwen3_vl_moe"] {
        for recompute in [Recompute::None, Recompute::Layer] {
            let mode = Mode::Update(recompute);
            let mut seeing = Seeing::open(name, mode, 2, Machine::detect());
            seeing.run(mode, |run| {
                let tower_pass = run.see(&run.reference.grids(), &run.reference.f32s("pixel_values"));
                let texts = run.texts();
                let pass = run.pass(&texts.ids, Some(&texts.places));
                let logprobs = read(run.dev, pass.head_out().logprobs);
                let (mut at, mut sum, mut count) = (0, 0.0f64, 0);
                for (i, ids) in texts.ids.iter().enumerate() {
                    let n = ids.len();
                    let theirs = run.reference.f32s(&format!("seq{i}.log_probs"));
                    close(&format!("{name} seq{i}"), &logprobs[at..at + n - 1], &theirs, 3e-5);
                    sum += logprobs[at + 2..at + n - 1].iter().map(|&l| f64::from(l)).sum::<f64>();
                    (at, count) = (at + n, count + n - 3);
                }
                let loss = (-sum / count as f64) as f32;
                assert!((loss - run.reference.f32s("loss")[0]).abs() < 4e-6, "{name}: loss {loss}");
                run.backward(&texts.ids, &pass);
                let d: VectorTable<'_> = run.d_vectors;
                // What was there is overwritten.
                run.dev.write_f32(run.tower_grads.all, 0, &vec![7.0; run.tower_grads.all.len()]);
                tower_backward(
                    run.dev,
                    run.tower,
                    TowerGradients::Weights(run.tower_grads),
                    false,
                    &tower_pass,
                    (&d, 0),
                );
                run.check_gradients(name, &run.tables[0], run.grads.all);
                run.check_gradients(name, &run.tables[1], run.tower_grads.all);
                // Adding to it doubles it.
                let once = read(run.dev, run.tower_grads.all.slice(0, 256));
                tower_backward(
                    run.dev,
                    run.tower,
                    TowerGradients::Weights(run.tower_grads),
                    true,
                    &tower_pass,
                    (&d, 0),
                );
                let twice = read(run.dev, run.tower_grads.all.slice(0, 256));
                assert!(once.iter().zip(&twice).all(|(a, b)| 2.0 * a == *b), "{name}: added to");
            });
        }
    }
}

#[test]
fn a_text_without_images_has_the_bits_that_it_has_next_to_them() {
    for name in ["qwen3_vl", "qwen3_5_vl", "qwen2_5_vl"] {
        for machine in Machine::all() {
            Seeing::open(name, UPDATE, 2, machine).run(UPDATE, |run| {
                run.see(&run.reference.grids(), &run.reference.f32s("pixel_values"));
                let texts = run.texts();
                let with = run.pass(&texts.ids, Some(&texts.places));
                let first = texts.ids[0].len();
                let of_images = read(run.dev, with.head_out().logprobs)[first..].to_vec();
                let plain = run.pass(&texts.ids[1..], None);
                let alone = read(run.dev, plain.head_out().logprobs);
                let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same(&of_images, &alone), "{name} {machine:?}: a text depends on images");
                run.backward(&texts.ids[1..], &plain);
                let grads = read(run.dev, run.grads.all);
                // Places of three equal numbers, and no vectors.
                let pass = run.pass(&texts.ids[1..], Some(&texts.places[first..]));
                run.backward(&texts.ids[1..], &pass);
                assert!(same(&grads, &read(run.dev, run.grads.all)), "{name} {machine:?}: gradients");
            });
        }
    }
}

/// Tokens that follow the text with images.
const DRAWN: usize = 6;

/// Draws after the text with images: all of it in one pass, then token by token, each pass made by the one before it.
fn drawn(run: &Run<'_>) -> (Vec<u32>, Vec<f32>) {
    run.see(&run.reference.grids(), &run.reference.f32s("pixel_values"));
    let (texts, vocab) = (run.texts(), run.decoder.spec.vocab);
    let n = texts.ids[0].len();
    let mut index = whole_sequences(&[&texts.ids[0]]);
    (index.head_rows, index.targets) = (vec![n as u32 - 1], vec![]);
    let tables = index.caches[Cache::PAGED].tables.clone();
    let how = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
    let (mut tokens, mut logprobs) = (vec![], vec![]);
    let mut step = |pass: &Pass<'_>| {
        layers(run.dev, run.decoder, pass);
        let mut token = [0];
        run.dev.read_u32(draw(run.dev, run.decoder, pass, how), 0, &mut token);
        tokens.push(token[0]);
        logprobs.extend(read(run.dev, pass.head_out().logprobs));
        token[0]
    };
    let upload = |index: &mut PassIndex, places: &[[u32; 3]]| {
        index.places = places.as_flattened().to_vec();
        let (images, taken) = (run.images(), &mut ImageIndex::default());
        let pass = run.seen(&images).upload(run.dev, run.acts, (index, taken), vocab);
        upload_keys(run.dev, &pass, &draw_key(how.seed, 0, n));
        pass
    };
    let first = step(&upload(&mut index, &texts.places[..n]));
    let mut index = PassIndex { keys_max: n + DRAWN, ..PassIndex::default() };
    (index.ids, index.positions, index.head_rows) = (vec![first], vec![n as u32], vec![0]);
    index.segments = vec![0, 1, n as u32, 0, NO_PARENT];
    (index.caches[Cache::PAGED].slots, index.caches[Cache::PAGED].tables) = (vec![n as u32], tables);
    // The cache's index goes on from the rows, the place from the image's longer side.
    let place = run.reference.numbers("seq0.positions")[n - 1] + 1;
    let pass = upload(&mut index, &[[place; 3]]);
    for _ in 1..DRAWN {
        step(&pass);
        advance(run.dev, &pass);
    }
    (tokens, logprobs)
}

#[test]
fn tokens_after_images_have_the_log_probs_in_rollout_that_the_update_has() {
    let rollout = Mode::Rollout { truncates: false };
    // One whose heads take places woven, and one that takes them in runs.
    let cases = ["qwen3_vl", "qwen2_5_vl"]
        .into_iter()
        .flat_map(|name| Machine::all().into_iter().map(move |on| (name, on)));
    for (name, machine) in cases {
        let (tokens, logprobs) = Seeing::open(name, rollout, 2, machine).run(rollout, drawn);
        Seeing::open(name, UPDATE, 1, machine).run(UPDATE, |run| {
            run.see(&run.reference.grids(), &run.reference.f32s("pixel_values"));
            let mut texts = run.texts();
            let mut ids = texts.ids.swap_remove(0);
            let n = ids.len();
            ids.extend(&tokens);
            let next = texts.places[n - 1][0] + 1;
            let mut places = texts.places[..n].to_vec();
            places.extend((next..).take(DRAWN).map(|place| [place; 3]));
            let pass = run.pass(&[ids], Some(&places));
            let again = &read(run.dev, pass.head_out().logprobs)[n - 1..n - 1 + DRAWN];
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&logprobs), bits(again), "{name} {machine:?}: {tokens:?}");
        });
    }
}

/// Returns the vectors of the two images, and the gradients of the tower's weights for fixed gradients of the vectors.
fn seen_in(dtype: DType, name: &str, threads: usize, machine: Machine) -> [Vec<f32>; 2] {
    Seeing::open_in(dtype, name, UPDATE, threads, machine).run(UPDATE, |run| {
        let pass = run.see(&run.reference.grids(), &run.reference.f32s("pixel_values"));
        let (table, d) = (&run.tables[1], run.d_vectors);
        let wave: Vec<f32> = (0..d.all.len()).map(|i| (i as f32 * 0.7).sin()).collect();
        run.dev.write_f32(d.all, 0, &wave);
        tower_backward(run.dev, run.tower, TowerGradients::Weights(run.tower_grads), false, &pass, (&d, 0));
        let layout = MatrixLayout::of_weights(table.device, dtype);
        let mut grads = Vec::new();
        for param in &table.params {
            let buf = run.tower_grads.all.slice(param.offset as usize, param.elements as usize);
            if param.is_vector() {
                grads.extend(read(run.dev, buf));
                continue;
            }
            let (n, k) = (param.n as usize, param.k as usize);
            let mut rows = vec![0.0; n * k];
            run.dev.read_rows(Matrix::new(buf, n, k, layout), 0, &mut rows);
            grads.extend(rows);
        }
        [run.vectors(0, 0, 21), grads]
    })
}

/// The goal: a tower in bf16 is the f32 tower but for rounding. A product rounds inputs and weights by up to 2^-9 each,
/// at random: its outputs are off by about 2^-9 of their size. A vector passes eleven products, and as many norms,
/// activations and sums are rounded between them: sqrt(22) 2^-9 is 0.9 %. A gradient passes twice as many, 1.3 %.
/// Three times as much is allowed.
#[test]
fn a_tower_in_bf16_is_that_in_f32_but_for_rounding() {
    let differs = |of: &[f32], exact: &[f32]| {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let error: f64 = of.iter().zip(exact).map(|(a, b)| square(a - b)).sum();
        (error / exact.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
    };
    for name in ["qwen3_vl", "qwen2_5_vl"] {
        let exact = seen_in(DType::F32, name, 2, Machine::detect());
        for machine in Machine::all() {
            let rounded = seen_in(DType::Bf16, name, 1, machine);
            let [vectors, grads] = [0, 1].map(|of| differs(&rounded[of], &exact[of]));
            println!("images {name} in bf16: vectors differ by {vectors:e}, gradients by {grads:e}");
            assert!(vectors < 0.027 && grads < 0.039, "{name} {machine:?}: {vectors}, {grads}");
            assert!(vectors > 1e-4 && grads > 1e-4, "{name} {machine:?}: nothing was rounded");
            assert!(rounded == seen_in(DType::Bf16, name, 3, machine), "{name} {machine:?}: threads");
        }
    }
}
