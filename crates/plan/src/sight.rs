//! What images take: the weights of the tower, its pass over one image, and the vectors of all that are needed at once.

use plimsoll_arch::SightSpec;
use plimsoll_base::DType;
use plimsoll_model::tower::{TowerLimits, tower_table};
use plimsoll_model::{ParamTable, Target};

/// Threads that decode images while the tower runs over others.
pub const DECODERS: usize = 4;
/// Host bytes of a pixel while an image is decoded.
const DECODED_BYTES: u64 = 15;
/// Host bytes of a thread that decodes, besides: what its allocations leave, and its stack. Measured at 1 to 3 MiB.
const DECODER_BYTES: u64 = 4 << 20;
/// Host bytes of a patch while its arrays are made: its place, its learned positions and their weights, and its key.
const PATCH_BYTES: u64 = 64;
/// Patches and images that share a pass through the tower, unless one image has more.
const PASS_PATCHES: usize = 1024;
const PASS_IMAGES: usize = 64;
/// Largest ratio of an image's sides.
const RATIO_MAX: f64 = 200.0;
/// Pixels and bytes of the largest image of data that a plan does not read.
const PIXELS_MAX: u64 = 1 << 24;
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of pixels that are decoded ahead: some 340 images of a megapixel.
const AHEAD_BYTES_MAX: u64 = 1 << 30;

/// The images of a run, and the tower that makes vectors of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SightShape {
    pub spec: SightSpec,
    /// Patches of the largest image: a pass through the tower has one.
    pub patches: usize,
    /// Most patches of an image's side.
    pub side: usize,
    /// Vectors of all images that are needed at once.
    pub vectors: usize,
    /// Those of them that answers of environments may bring while a rollout runs.
    pub answers: usize,
    /// The most of an episode's answers.
    pub episode_answers: usize,
    /// Pixels of the largest image before it is resized.
    pub pixels: u64,
    /// Bytes of the largest image's file.
    pub file: u64,
    /// True if the tower is trained.
    pub trains: bool,
    /// How a teacher with a tower of its own sees the same images.
    pub teacher: Option<SightSpec>,
    /// True if images of the next step are decoded while a step runs.
    pub ahead: bool,
}

impl SightShape {
    /// Returns the shape for images that are not read: of up to `pixels` after they are resized, in prompts of up to
    /// `tokens` tokens of which `prompts` are needed at once.
    pub fn bound(spec: SightSpec, [least, most]: [u64; 2], tokens: usize, prompts: usize) -> SightShape {
        let factor = f64::from(spec.tower.patch * spec.tower.merge);
        let [least, most] = [least, most].map(|pixels| pixels as f64);
        // A side is a whole number of tokens: a narrow image may have more pixels than it should.
        let narrow = |pixels: f64| factor * (RATIO_MAX * pixels).sqrt();
        let area =
            most.max(narrow(most)).max(least + narrow(least) + narrow(least) / RATIO_MAX + factor * factor);
        let patch = f64::from(spec.tower.patch);
        let of_tokens = tokens * spec.tower.rows_per_vector() as usize;
        let patches = ((area / (patch * patch)).ceil() as usize).min(of_tokens).max(1);
        let side = ((RATIO_MAX * area).sqrt() / patch).ceil() as usize;
        let side = side.min(patches.next_multiple_of(spec.tower.merge as usize));
        let vectors = tokens.saturating_mul(prompts);
        let (pixels, file) = (PIXELS_MAX, FILE_BYTES_MAX);
        SightShape {
            spec,
            patches,
            side,
            vectors,
            answers: 0,
            episode_answers: 0,
            pixels,
            file,
            trains: false,
            teacher: None,
            ahead: false,
        }
    }

    /// Returns it with room for the images of `episodes` episodes' answers, `most` of each, with up to `tokens` tokens
    /// between two turns. The area of images as in `bound`.
    pub fn with_answers(self, area: [u64; 2], episodes: usize, most: usize, tokens: usize) -> SightShape {
        let one = SightShape::bound(self.spec, area, tokens, 1);
        let vectors = one.patches.div_ceil(self.spec.tower.rows_per_vector() as usize).min(tokens);
        let episode_answers = most.saturating_mul(vectors);
        let answers = episodes.saturating_mul(episode_answers);
        SightShape {
            patches: self.patches.max(one.patches),
            side: self.side.max(one.side),
            vectors: self.vectors.saturating_add(answers),
            answers,
            episode_answers,
            pixels: self.pixels.max(one.pixels),
            file: self.file.max(one.file),
            ..self
        }
    }

    /// Returns the shape of a teacher's tower and its vectors, if it has its own.
    pub fn of_teacher(&self) -> Option<SightShape> {
        self.teacher.map(|spec| SightShape { spec, trains: false, teacher: None, ..*self })
    }

    /// Returns the table of the tower's weights.
    pub fn table(&self, target: Target, weights: DType) -> ParamTable {
        tower_table(&self.spec.tower, target.kind, weights)
    }

    /// Returns the limits of a pass through the tower: one image of the largest, or several small ones.
    pub fn limits(&self) -> TowerLimits {
        let of_vector = self.spec.tower.rows_per_vector() as usize;
        let patches = self.patches.max(PASS_PATCHES.min(self.vectors.saturating_mul(of_vector)));
        TowerLimits { patches, images: (patches / of_vector).clamp(1, PASS_IMAGES) }
    }

    /// Returns the host bytes of images while they are decoded and become patches; each of `tables` keeps the memory of
    /// patches.
    pub(crate) fn decoding_bytes(&self, tables: u64) -> u64 {
        let tower = &self.spec.tower;
        let of_pass = self.limits().patches as u64;
        let resized = 3 * u64::from(tower.patch * tower.patch) * self.patches as u64;
        let of_patches =
            (4 * u64::from(tower.patch_elements()) + 3 * u64::from(tower.patch * tower.patch) + PATCH_BYTES)
                * of_pass;
        // Each thread has one, and one waits.
        let one = DECODED_BYTES * self.pixels + self.file + resized + DECODER_BYTES;
        // The pixels of a trained tower's images are kept for its backward pass.
        let kept = if self.trains { self.pixel_bytes() } else { 0 };
        let decoding = (DECODERS as u64).saturating_mul(one);
        // A teacher's patches are written apart from the student's, one after the other.
        let tables = tables + u64::from(self.teacher.is_some());
        decoding.saturating_add(2 * resized + tables * of_patches).saturating_add(kept)
    }

    /// Returns the most bytes of pixels that are decoded before they are needed: those of all images of a step, up to
    /// a bound.
    pub fn ahead_bytes(&self) -> u64 {
        if self.ahead { self.pixel_bytes().min(AHEAD_BYTES_MAX) } else { 0 }
    }

    /// Returns the bytes of pixels of all images that are needed at once.
    fn pixel_bytes(&self) -> u64 {
        let tower = &self.spec.tower;
        let of_vector = 3 * u64::from(tower.patch * tower.patch * tower.rows_per_vector());
        of_vector.saturating_mul(self.vectors as u64)
    }
}
