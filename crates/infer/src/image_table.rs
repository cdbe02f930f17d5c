//! The tower of a run, and the table of the vectors that it gave for the images which prompts name now.

use crate::album::{Album, RowImage};
use crate::images_ahead::ImagesAhead;
use crate::phases::enter;
use crate::sight::{TowerOf, bind_tower};
use crate::weights::Loading;
use plimsoll_arch::{SightSpec, TowerSpec};
use plimsoll_base::Result;
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_images::{PatchRows, Pixels, Prepared};
use plimsoll_memory::{Buf, InPhase, Overlay, Resident};
use plimsoll_model::tower::{
    PatchGrid, Tower, TowerAdapters, TowerGradients, TowerIndex, TowerLimits, TowerPass, TowerRegions,
    VectorTable, tower_backward, tower_forward,
};
use plimsoll_model::{ImageRegions, Mode, SeenImages, TextImage, VectorGradients};
use plimsoll_plan::{DECODERS, RunShape};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// The region of the gradients of vectors, in the phase that trains a tower.
const D_VECTORS: &str = "images.d_vectors";
/// That of rows which several ranks add to them.
const KEPT_ROWS: &str = "images.kept_rows";

/// The vectors of images, computed where they are needed and kept while they are.
pub struct ImageTable<'a> {
    pub album: Arc<Album>,
    sight: SightSpec,
    tower: Tower<'a>,
    vectors: VectorTable<'a>,
    /// The images that the table has, by their first vectors.
    held: Vec<TextImage>,
    rows: PatchRows,
    /// The phase in which the tower runs forward.
    mode: Mode,
    patches: Vec<f32>,
    limits: TowerLimits,
    /// Seconds in which images were decoded and seen, since they were last asked for.
    seconds: f64,
    /// The pixels of the images that it has, where the tower is trained.
    pixels: Option<BTreeMap<u32, Prepared>>,
    ahead: ImagesAhead,
    /// Vectors at the table's end that answers may bring.
    answers: usize,
    /// The most of an episode's answers.
    episode_answers: usize,
    /// The number and the place of the first of them.
    answers_from: [u32; 2],
}

impl<'a> ImageTable<'a> {
    /// Binds a tower of a plan with images, and reads its weights from `model`.
    ///
    /// Errors: those of reading.
    pub fn bind(
        dev: &dyn Device,
        resident: Resident<'a>,
        shape: &RunShape,
        (model, album, of): (&OpenModel, Arc<Album>, TowerOf),
        how: Loading,
    ) -> Result<ImageTable<'a>> {
        let [weights, vectors] =
            ["tower.weights", "images.vectors"].map(|name| resident.buf(&of.region(name)));
        let mut table =
            ImageTable::bind_as(dev, resident, (shape, of), (weights, vectors), (model, album), how)?;
        if of == TowerOf::Teacher {
            return Ok(table);
        }
        table.pixels = shape.tower_learns().map(|_| BTreeMap::new());
        let first = shape.roles().swap_remove(0);
        if let Some((lora, adapters)) = first.lora.zip(first.adapters()) {
            let run = adapters.tower_run();
            let all = resident.buf(&format!("{}.adapters", first.name.name()));
            let all = all.slice(run.start as usize, run.elements as usize);
            let own = TowerAdapters::bind(&table.tower.spec, &adapters, shape.weights, lora.scale, all);
            let Tower { spec, params, rope } = table.tower;
            let params = match own {
                Some(own) => params.with_adapters(&own),
                None => params,
            };
            table.tower = Tower { spec, params, rope };
        }
        Ok(table)
    }

    /// Binds what a reference sees by next to a tower that is trained: the tower as it was, and its vectors. None in a
    /// plan without such.
    ///
    /// Errors: those of reading.
    pub fn bind_reference(
        dev: &dyn Device,
        resident: Resident<'a>,
        shape: &RunShape,
        (model, album): (&OpenModel, Arc<Album>),
        how: Loading,
    ) -> Result<Option<ImageTable<'a>>> {
        let Some(vectors) = resident.get("reference.images") else { return Ok(None) };
        let weights = resident.get("reference.tower").unwrap_or_else(|| resident.buf("tower.weights"));
        let of = (shape, TowerOf::Run);
        ImageTable::bind_as(dev, resident, of, (weights, vectors), (model, album), how).map(Some)
    }

    fn bind_as(
        dev: &dyn Device,
        resident: Resident<'a>,
        (shape, of): (&RunShape, TowerOf),
        (weights, vectors): (Buf<'a>, Buf<'a>),
        (model, album): (&OpenModel, Arc<Album>),
        how: Loading,
    ) -> Result<ImageTable<'a>> {
        let sight = of.sight(shape);
        let tower = bind_tower(dev, resident, (shape, of), weights, model, how)?;
        let vectors = VectorTable::new(&sight.spec.tower, vectors);
        let (held, mode) = (Vec::new(), of.mode(shape));
        let rows = PatchRows::new(album.processor);
        Ok(ImageTable {
            album,
            sight: sight.spec,
            tower,
            vectors,
            held,
            rows,
            mode,
            patches: Vec::new(),
            limits: sight.limits(),
            seconds: 0.0,
            pixels: None,
            ahead: ImagesAhead::new(sight.ahead_bytes()),
            answers: sight.answers,
            episode_answers: sight.episode_answers,
            answers_from: [0; 2],
        })
    }

    /// Returns how many prompts it has room for, whichever they are.
    pub fn prompts(&self) -> usize {
        (self.vectors.vectors() - self.answers) / self.album.sizes().vectors.max(1)
    }

    /// Returns how many episodes may bring images with their answers at one time.
    pub fn episodes(&self) -> usize {
        self.answers.checked_div(self.episode_answers).unwrap_or(usize::MAX)
    }

    /// Holds the images that texts name, in a phase of its own where some are missing.
    ///
    /// Errors: those of reading and decoding images.
    pub fn hold<'p>(
        &mut self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        texts: impl Iterator<Item = &'p [u32]>,
    ) -> Result<()> {
        let wanted = self.album.of_prompts(texts);
        if self.has(&wanted) {
            return Ok(());
        }
        let phase = enter(dev, overlay, self.mode.phase());
        self.see(dev, &phase, &wanted)
    }

    /// Holds the images of prompts, in the phase Rollout.
    ///
    /// Errors: those of reading and decoding images.
    pub fn hold_in<'p>(
        &mut self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        prompts: impl Iterator<Item = &'p [u32]>,
    ) -> Result<()> {
        let wanted = self.album.of_prompts(prompts);
        if self.has(&wanted) { Ok(()) } else { self.see(dev, phase, &wanted) }
    }

    /// Returns V: numbers of rows from there on are vectors.
    pub fn vocab(&self) -> u32 {
        self.album.vocab()
    }

    /// Runs a pass over the smallest image, in a phase of its own, as `rehearse`.
    ///
    /// Errors: those of the device.
    pub fn rehearse_apart(&mut self, dev: &dyn Device, overlay: &mut Overlay<'_>) -> Result<()> {
        let phase = enter(dev, overlay, self.mode.phase());
        self.rehearse(dev, &phase)
    }

    /// Notes the images that the next step will need, which are decoded after those that are needed next.
    pub fn expect<'i>(&mut self, images: impl Iterator<Item = &'i Arc<RowImage>>) {
        let of_patch = 3 * u64::from(self.tower.spec.patch).pow(2);
        self.ahead.expect(images.cloned(), |image| of_patch * image.grid.patches() as u64);
    }

    /// Begins a rollout whose answers may bring images, once those of its prompts are held. Returns what its rows may
    /// name: the images that the table has, and all that answers may bring as one.
    ///
    /// Errors: `image-count`.
    pub(crate) fn begin_answers(&mut self) -> Result<Vec<TextImage>> {
        if self.answers == 0 {
            return Ok(self.held.clone());
        }
        let at = (self.vectors.vectors() - self.answers) as u32;
        // Answers of an earlier rollout may be where the next ones go.
        self.held.retain(|held| held.at + held.rows * held.columns <= at);
        let first = self.album.keep_for_answers(self.answers as u32)?;
        self.answers_from = [first, at];
        let all = TextImage { first, rows: self.answers as u32, columns: 1, at };
        Ok(self.held.iter().copied().chain([all]).collect())
    }

    /// Computes the vectors of an image that an answer has brought, in the phase Rollout.
    ///
    /// Errors: those of the device.
    pub(crate) fn see_answer(
        &mut self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        image: &RowImage,
    ) -> Result<()> {
        let started = Instant::now();
        let prepared = match self.album.take_decoded(image.first) {
            Some(prepared) => prepared,
            None => image.prepare(&self.album.processor)?,
        };
        let ([first, from], merge) = (self.answers_from, self.tower.spec.merge);
        let at = from + (image.first - first);
        self.see_one(dev, phase, &prepared, at as usize)?;
        let [rows, columns] = [image.grid.height, image.grid.width].map(|side| side / merge);
        self.held.push(TextImage { first: image.first, rows, columns, at });
        self.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Returns the images that the table has, by their first vectors, ascending.
    pub(crate) fn held(&self) -> &[TextImage] {
        &self.held
    }

    /// Returns what passes of a mode need to know, in its phase.
    pub fn seen<'m, 'p>(&'m self, phase: &InPhase<'p>, mode: Mode) -> SeenImages<'m, 'p>
    where
        'a: 'p,
    {
        SeenImages {
            spec: &self.sight,
            regions: ImageRegions::bind(phase, mode),
            vectors: self.vectors,
            d_vectors: self.gradients_in(phase),
            images: &self.held,
        }
    }

    /// Returns where passes of a phase put the gradients of vectors, if this is the tower that learns from them.
    fn gradients_in<'p>(&self, phase: &InPhase<'p>) -> Option<VectorGradients<'p>>
    where
        'a: 'p,
    {
        self.pixels.as_ref()?;
        let kept = phase.get(KEPT_ROWS).map(VectorGradients::Kept);
        kept.or_else(|| self.gradients(phase).map(VectorGradients::Added))
    }

    /// Returns the gradients of vectors, in the phase that trains the tower.
    pub fn gradients<'p>(&self, phase: &InPhase<'p>) -> Option<VectorTable<'p>>
    where
        'a: 'p,
    {
        phase.get(D_VECTORS).map(|all| VectorTable::new(&self.tower.spec, all))
    }

    /// Runs a pass over the smallest image there is, so that a device has what the tower's operations need.
    ///
    /// Errors: those of the device.
    pub(crate) fn rehearse(&mut self, dev: &dyn Device, phase: &InPhase<'_>) -> Result<()> {
        let side = self.tower.spec.merge * self.tower.spec.patch;
        let rgb = vec![0; 3 * (side * side) as usize];
        let pixels = Pixels { width: side, height: side, rgb };
        let [height, width] = [self.tower.spec.merge; 2];
        let grid = plimsoll_images::PatchGrid { frames: 1, height, width };
        let tokens = grid.tokens(self.tower.spec.merge);
        self.see_one(dev, phase, &Prepared { pixels, grid, tokens }, 0)
    }

    /// Returns the table as one image, of which each vector's number is its place.
    pub(crate) fn whole(&self) -> [TextImage; 1] {
        [TextImage { first: 0, rows: self.vectors.vectors() as u32, columns: 1, at: 0 }]
    }

    /// Computes the vectors of an image into the table, from vector `at` on.
    ///
    /// Errors: those of the device.
    pub(crate) fn see_one(
        &mut self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        image: &Prepared,
        at: usize,
    ) -> Result<()> {
        let (limits, rows, taken) = (self.limits, &self.rows, Vec::new());
        let mut passes = Passes { limits, rows, patches: &mut self.patches, taken };
        let regions = TowerRegions::bind(phase, self.mode);
        let pass = passes.upload(dev, (&self.tower, regions), std::iter::once(image));
        tower_forward(dev, &self.tower, &pass, &self.vectors, at);
        dev.sync();
        dev.check()
    }

    fn has(&self, wanted: &[Arc<RowImage>]) -> bool {
        let has =
            |image: &Arc<RowImage>| self.held.binary_search_by_key(&image.first, |held| held.first).is_ok();
        wanted.iter().all(has)
    }

    /// Computes the vectors of images into the table, a pass at a time, while others are decoded.
    fn see(&mut self, dev: &dyn Device, phase: &InPhase<'_>, wanted: &[Arc<RowImage>]) -> Result<()> {
        let started = Instant::now();
        self.held.clear();
        let (merge, mut at, mut held) = (self.tower.spec.merge, 0, Vec::with_capacity(wanted.len()));
        for image in wanted {
            let [rows, columns] = [image.grid.height, image.grid.width].map(|side| side / merge);
            held.push(TextImage { first: image.first, rows, columns, at });
            at += rows * columns;
        }
        let room = self.vectors.vectors();
        assert!(at as usize <= room, "{at} vectors of a step's images, planned are {room}");
        let regions = TowerRegions::bind(phase, self.mode);
        let (album, mut pixels) = (self.album.clone(), self.pixels.take());
        let mut known = pixels.as_mut().map(std::mem::take).unwrap_or_default();
        self.ahead.pause();
        let there = |image: &Arc<RowImage>| Some((image.first, self.ahead.take(image.first)?));
        known.extend(wanted.iter().filter_map(there).collect::<Vec<_>>());
        let is_missing = |i: &usize| !known.contains_key(&wanted[*i].first);
        let missing: Vec<usize> = (0..wanted.len()).filter(is_missing).collect();
        let images: Vec<Arc<RowImage>> = missing.iter().map(|i| wanted[*i].clone()).collect();
        let (tower, vectors, rows) = (&self.tower, &self.vectors, &self.rows);
        let mut passes = Passes { limits: self.limits, rows, patches: &mut self.patches, taken: Vec::new() };
        let mut each = |passes: &mut Passes<'_>, all: Vec<(TextImage, Prepared)>| {
            let Some((first, _)) = all.first() else { return Ok(()) };
            let pass = passes.upload(dev, (tower, regions), all.iter().map(|(_, image)| image));
            tower_forward(dev, tower, &pass, vectors, first.at as usize);
            dev.sync();
            if let Some(pixels) = &mut pixels {
                pixels.extend(all.into_iter().map(|(held, image)| (held.first, image)));
            }
            dev.check()
        };
        let mut next = 0;
        let mut take = |passes: &mut Passes<'_>, up_to: usize, decoded: Option<Prepared>| {
            let mut decoded = decoded;
            while next < up_to {
                let own = known.remove(&held[next].first).or_else(|| decoded.take());
                let image = own.expect("an image that is known, or the one that was decoded");
                let full = passes.take(held[next], image);
                each(passes, full)?;
                next += 1;
            }
            Ok(())
        };
        decoded(&album, &images, |i, image| take(&mut passes, missing[i] + 1, Some(image)))?;
        take(&mut passes, wanted.len(), None)?;
        let last = std::mem::take(&mut passes.taken);
        each(&mut passes, last)?;
        (self.held, self.pixels) = (held, pixels);
        self.ahead.begin(self.album.processor);
        self.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Returns the seconds in which images were decoded and seen since the last call.
    pub fn take_seconds(&mut self) -> f64 {
        std::mem::take(&mut self.seconds)
    }

    /// Forgets the vectors: the tower has changed.
    pub fn forget(&mut self) {
        self.held.clear();
    }

    /// Returns the sizes of its tower.
    pub fn spec(&self) -> &TowerSpec {
        &self.tower.spec
    }

    /// Returns the tower's weights.
    pub fn weights(&self) -> Buf<'a> {
        self.tower.params.all
    }

    /// Zeroes the gradients of vectors, in the phase that trains the tower.
    pub fn begin_gradients(&self, dev: &dyn Device, phase: &InPhase<'_>) {
        dev.zero(phase.buf(D_VECTORS));
    }

    /// Computes the tower's gradients from those of the vectors that the table has: of each image a pass forward, which
    /// keeps what the pass backward needs.
    ///
    /// Errors: those of the device.
    pub fn backward<'p>(
        &mut self,
        dev: &dyn Device,
        (phase, mode): (&InPhase<'p>, Mode),
        grads: TowerGradients<'_, 'p>,
    ) -> Result<()>
    where
        'a: 'p,
    {
        let regions = TowerRegions::bind(phase, mode);
        let d = VectorTable::new(&self.tower.spec, phase.buf(D_VECTORS));
        let pixels = self.pixels.as_ref().expect("a tower that is trained");
        // The first pass writes all but what lies between parameters.
        dev.zero(match grads {
            TowerGradients::Weights(params) => params.all,
            TowerGradients::Adapters(adapters) => adapters.all,
        });
        let mut passes =
            Passes { limits: self.limits, rows: &self.rows, patches: &mut self.patches, taken: Vec::new() };
        let (tower, vectors, mut is_first) = (&self.tower, &self.vectors, true);
        let mut each = |passes: &mut Passes<'_>, all: Vec<(TextImage, Prepared)>| {
            let Some((first, _)) = all.first() else { return Ok(()) };
            let pass = passes.upload(dev, (tower, regions), all.iter().map(|(_, image)| image));
            // The same vectors, where they are.
            tower_forward(dev, tower, &pass, vectors, first.at as usize);
            let is_added = !std::mem::replace(&mut is_first, false);
            tower_backward(dev, tower, grads, is_added, &pass, (&d, first.at as usize));
            dev.sync();
            dev.check()
        };
        for held in &self.held {
            let full = passes.take(*held, pixels[&held.first].clone());
            each(&mut passes, full)?;
        }
        let last = std::mem::take(&mut passes.taken);
        each(&mut passes, last)
    }
}

/// Puts images together into passes of a tower, in order.
struct Passes<'t> {
    limits: TowerLimits,
    rows: &'t PatchRows,
    patches: &'t mut Vec<f32>,
    taken: Vec<(TextImage, Prepared)>,
}

impl Passes<'_> {
    /// Takes an image. Returns the images of a pass that has no room for it; none if it has.
    fn take(&mut self, held: TextImage, image: Prepared) -> Vec<(TextImage, Prepared)> {
        let patches: usize = self.taken.iter().map(|(_, image)| image.grid.patches()).sum();
        let has_room =
            patches + image.grid.patches() <= self.limits.patches && self.taken.len() < self.limits.images;
        let full = if has_room { Vec::new() } else { std::mem::take(&mut self.taken) };
        self.taken.push((held, image));
        full
    }

    /// Uploads images as a pass of a tower.
    fn upload<'i, 'p>(
        &mut self,
        dev: &dyn Device,
        (tower, regions): (&Tower<'_>, TowerRegions<'p>),
        images: impl Iterator<Item = &'i Prepared>,
    ) -> TowerPass<'p> {
        let mut grids = Vec::with_capacity(self.limits.images);
        self.patches.clear();
        for image in images {
            let from = self.patches.len();
            self.patches.resize(from + image.grid.patches() * self.rows.row_len(), 0.0);
            self.rows.write(&image.pixels, &mut self.patches[from..]);
            grids.push(PatchGrid { rows: image.grid.height, columns: image.grid.width });
        }
        TowerPass::upload(dev, regions, &TowerIndex::of(&tower.spec, &grids), self.patches)
    }
}

/// Decodes images on some threads, and calls `each` with each in order, on this one.
fn decoded(
    album: &Album,
    images: &[Arc<RowImage>],
    mut each: impl FnMut(usize, Prepared) -> Result<()>,
) -> Result<()> {
    let (next, (send, receive)) = (AtomicUsize::new(0), sync_channel(1));
    std::thread::scope(|scope| {
        let begin = |_: &usize| {
            let (send, next) = (send.clone(), &next);
            let work = move || {
                while let (i, Some(image)) = next_of(images, next) {
                    // Nothing is received after an error.
                    if send.send((i, image.prepare(&album.processor))).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("images".into()).spawn_scoped(scope, work).is_ok()
        };
        let begun = (0..DECODERS.min(images.len())).filter(begin).count();
        drop(send);
        if begun == 0 {
            let mut all = images.iter().enumerate();
            return all.try_for_each(|(i, image)| each(i, image.prepare(&album.processor)?));
        }
        // Threads take images in order, so few wait for one before them.
        let (mut waiting, mut at) = (BTreeMap::new(), 0);
        receive.into_iter().try_for_each(|(i, image): (usize, Result<Prepared>)| {
            waiting.insert(i, image);
            while let Some(image) = waiting.remove(&at) {
                each(at, image?)?;
                at += 1;
            }
            Ok(())
        })
    })
}

/// Returns the next image that no thread has.
fn next_of<'i>(images: &'i [Arc<RowImage>], next: &AtomicUsize) -> (usize, Option<&'i Arc<RowImage>>) {
    let i = next.fetch_add(1, Ordering::Relaxed);
    (i, images.get(i))
}
