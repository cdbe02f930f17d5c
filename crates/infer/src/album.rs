//! The images of a run's rows: where each one is, how large it is, and the numbers that stand for its vectors among
//! tokens. A number is given once, so that no image is taken for another, in whichever step, turn or pass it comes.

use crate::sight::{ModelProcessor, takes_none};
use plimsoll_arch::SightSpec;
use plimsoll_base::{Error, Result};
use plimsoll_config::Data;
use plimsoll_files::OpenModel;
use plimsoll_images::{Expanded, FAMILIES, Marks, PatchGrid, Prepared, expand, header, prepare};
use plimsoll_plan::SightShape;
use plimsoll_reward::SampleImage;
use plimsoll_text::{ImageFolder, ImageSource};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub use plimsoll_images::Processor;

/// Most pixels of an answer's image before it is resized: as many as a plan has room for that reads no data.
const ANSWER_PIXELS_MAX: u64 = 1 << 24;

/// An image of a row, which is decoded where its vectors are needed.
#[derive(Debug)]
pub struct RowImage {
    /// The number of its first vector.
    pub first: u32,
    /// Its patches.
    pub grid: PatchGrid,
    /// Its tokens in a prompt.
    pub tokens: usize,
    /// The file, or the content that its row holds.
    pub file: SampleImage,
    /// The file as its row names it.
    pub name: Option<String>,
    /// The folder with the file.
    folder: Option<Arc<ImageFolder>>,
    /// The row, for errors.
    place: String,
    /// A hash of its file.
    hash: u64,
}

/// The largest images and prompts of an album, which a plan must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlbumSizes {
    /// Patches of an image.
    pub patches: usize,
    /// Patches of an image's side.
    pub side: usize,
    /// Vectors of a prompt's images.
    pub vectors: usize,
    /// Pixels of an image before it is resized.
    pub pixels: u64,
    /// Bytes of an image's file.
    pub file: u64,
}

/// All images of a run's rows. Rows share it, and drop out of it with their last copy.
#[derive(Debug)]
pub struct Album {
    pub sight: SightSpec,
    pub processor: Processor,
    /// V: numbers from there on are vectors.
    vocab: u32,
    images: Mutex<Images>,
}

#[derive(Debug, Default)]
struct Images {
    next: u32,
    /// Numbers that are kept for answers: the next, and the first after them.
    answers: [u32; 2],
    /// Images of answers, which are decoded as they come, by their first vectors.
    decoded: BTreeMap<u32, Prepared>,
    of_rows: BTreeMap<u32, Weak<RowImage>>,
    sizes: AlbumSizes,
}

impl Album {
    /// Returns the empty album of a model that sees.
    ///
    /// Errors: `model-takes-no-images`, `image-processor-invalid`; those of `OpenModel::sight`.
    pub fn open(model: &OpenModel, data: &Data) -> Result<Album> {
        let sight = model.sight()?.ok_or_else(|| takes_none(model))?;
        let mut found = ModelProcessor::of(model.path.as_deref(), data)?;
        // What is drawn at random has no file that says it: it is as what has patches of its size.
        let mut published = FAMILIES.into_iter().filter_map(Processor::of_family);
        let same = published.find(|of| of.patch == sight.tower.patch);
        if let (None, Some(same)) = (&model.path, same) {
            found.processor = same.with_pixels(data.image_pixels_min, data.image_pixels_max)?;
        }
        let processor = found.of_tower(&sight.tower)?;
        Ok(Album { sight, processor, vocab: model.spec.vocab, images: Mutex::default() })
    }

    /// Returns V: numbers of rows from there on are vectors.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Returns how a teacher sees the images, which it must cut as the run's model does.
    ///
    /// Errors: those of `open`; `images-not-built` for a teacher that cuts images otherwise.
    pub fn teacher_sight(&self, teacher: &OpenModel, data: &Data) -> Result<SightSpec> {
        let of_teacher = |error: Error| error.fact("it is distill.teacher");
        let Album { sight, processor, .. } = Album::open(teacher, data).map_err(of_teacher)?;
        let [own, its] = [&self.sight, &sight].map(|sight| (sight.image_token, sight.around));
        if processor == self.processor && own == its {
            return Ok(sight);
        }
        let message = format!("{} cuts images into other patches than the student", teacher.source);
        Err(Error::usage("images-not-built", message)
            .fact("it is distill.teacher, and a prompt has its images once, for both")
            .hint("choose a teacher of the student's family"))
    }

    /// Returns the largest images and prompts so far.
    pub fn sizes(&self) -> AlbumSizes {
        self.images().sizes
    }

    /// Returns what a plan must know where the images of `prompts` prompts are needed at once.
    pub fn shape(&self, prompts: usize) -> SightShape {
        let AlbumSizes { patches, side, vectors, pixels, file } = self.sizes();
        let vectors = vectors.saturating_mul(prompts);
        SightShape {
            spec: self.sight,
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

    /// Takes the images of a prompt whose tokens have a placeholder for each. Returns its rows, tokens and numbers of
    /// vectors, with its images. `place`: the row, for errors.
    ///
    /// Errors: those of `admit` and of `place`.
    pub fn take(
        &self,
        ids: &[u32],
        images: Vec<Result<ImageSource>>,
        folder: Option<&Arc<ImageFolder>>,
        place: &str,
    ) -> Result<(Vec<u32>, Vec<Arc<RowImage>>)> {
        let taken = self.admit(images, folder, place)?;
        let placed = self.place(ids, &taken).map_err(|error| error.fact(format!("the row: {place}")))?;
        Ok((placed.ids, taken))
    }

    /// Gives the images of a row their numbers.
    ///
    /// Errors: those of reading the headers of images.
    pub fn admit(
        &self,
        images: Vec<Result<ImageSource>>,
        folder: Option<&Arc<ImageFolder>>,
        place: &str,
    ) -> Result<Vec<Arc<RowImage>>> {
        let mut found = Vec::with_capacity(images.len());
        for (i, source) in images.into_iter().enumerate() {
            found.push(self.read(source?, folder, format!("{place}: image {}", i + 1))?);
        }
        let mut all = self.images();
        all.sizes.vectors = all.sizes.vectors.max(found.iter().map(|(image, _)| image.tokens).sum());
        let mut taken = Vec::with_capacity(found.len());
        for (image, size) in found {
            let first = all.next;
            let after = u32::try_from(image.tokens).ok().and_then(|tokens| first.checked_add(tokens));
            all.next = after.filter(|next| next.checked_add(self.vocab).is_some()).ok_or_else(too_many)?;
            all.sizes.add(&image, size);
            let image = Arc::new(RowImage { first, ..image });
            all.of_rows.insert(first, Arc::downgrade(&image));
            taken.push(image);
        }
        // Rows that a task made are dropped after their step.
        if all.of_rows.len().is_power_of_two() {
            all.of_rows.retain(|_, image| image.strong_count() > 0);
        }
        Ok(taken)
    }

    /// Writes the numbers of images into tokens that have a placeholder for each. Returns the rows, with where each
    /// image is.
    ///
    /// Errors: `image-count`.
    pub fn place(&self, ids: &[u32], images: &[Arc<RowImage>]) -> Result<Expanded> {
        let tokens: Vec<usize> = images.iter().map(|image| image.tokens).collect();
        let SightSpec { image_token: pad, around: [start, end], .. } = self.sight;
        let mut placed = expand(ids, Marks { start, pad, end }, &tokens)?;
        for (image, range) in images.iter().zip(&placed.images) {
            let numbers = self.vocab + image.first..;
            placed.ids[range.clone()].iter_mut().zip(numbers).for_each(|(id, number)| *id = number);
        }
        Ok(placed)
    }

    /// Keeps `vectors` numbers for the images of the answers of a rollout, and returns the first.
    ///
    /// Errors: `image-count`.
    pub(crate) fn keep_for_answers(&self, vectors: u32) -> Result<u32> {
        let mut all = self.images();
        let first = all.next;
        let after = first.checked_add(vectors).filter(|next| next.checked_add(self.vocab).is_some());
        all.next = after.ok_or_else(too_many)?;
        all.answers = [first, all.next];
        all.decoded.clear();
        Ok(first)
    }

    /// Takes an image that an answer has, with numbers that are kept for such. `place`: where it is from, for errors.
    ///
    /// Errors: those of reading and decoding it; `image-count`, `image-too-large` for what has no room.
    pub fn take_answer(&self, bytes: Vec<u8>, place: &str) -> Result<Arc<RowImage>> {
        let (image, [_, pixels]) = self.read(ImageSource::Bytes(bytes), None, place.to_string())?;
        if pixels > ANSWER_PIXELS_MAX {
            let message =
                format!("{place}: {pixels} pixels; an answer's image has at most {ANSWER_PIXELS_MAX}");
            return Err(Error::new("image-too-large", message).hint("make it smaller"));
        }
        let prepared = image.prepare(&self.processor)?;
        let mut all = self.images();
        let [first, end] = all.answers;
        if image.tokens > (end - first) as usize {
            let message = format!("{place}: no room is left for its {} tokens", image.tokens);
            return Err(Error::new("image-count", message)
                .hint("set data.image_pixels_max lower, or environment.turn_tokens_max higher"));
        }
        all.answers[0] += image.tokens as u32;
        let image = Arc::new(RowImage { first, ..image });
        all.of_rows.insert(first, Arc::downgrade(&image));
        all.decoded.insert(first, prepared);
        Ok(image)
    }

    /// Returns an image of an answer as it was decoded, once.
    pub(crate) fn take_decoded(&self, first: u32) -> Option<Prepared> {
        self.images().decoded.remove(&first)
    }

    /// Returns the images of prompts that are in the album, each once, by their first vectors.
    pub(crate) fn of_prompts<'p>(&self, prompts: impl Iterator<Item = &'p [u32]>) -> Vec<Arc<RowImage>> {
        let all = self.images();
        let mut found: BTreeMap<u32, Arc<RowImage>> = BTreeMap::new();
        for prompt in prompts {
            let mut rows = prompt.iter().filter_map(|id| id.checked_sub(self.vocab));
            while let Some(vector) = rows.next() {
                let before = all.of_rows.range(..=vector).next_back();
                let Some(image) = before.and_then(|(_, image)| image.upgrade()) else { continue };
                (1..image.tokens).for_each(|_| _ = rows.next());
                found.insert(image.first, image);
            }
        }
        found.into_values().collect()
    }

    /// Reads the header of an image. Returns it without a number, and the bytes and pixels of its file.
    fn read(
        &self,
        source: ImageSource,
        folder: Option<&Arc<ImageFolder>>,
        place: String,
    ) -> Result<(RowImage, [u64; 2])> {
        let at = |mut error: Error| {
            error.message = format!("{place}: {}", error.message);
            error
        };
        let (file, name) = file_of(source, folder).map_err(at)?;
        let bytes = read(&file, folder).map_err(at)?;
        let size = header(&bytes).map_err(|fault| fault.at(&place))?.size();
        let (_, grid, tokens) = self.processor.size_of(size).map_err(|fault| fault.at(&place))?;
        let sizes = [bytes.len() as u64, u64::from(size.width) * u64::from(size.height)];
        let hash = hash(&bytes);
        drop(bytes);
        let folder = folder.cloned();
        Ok((RowImage { first: 0, grid, tokens, file, name, folder, place, hash }, sizes))
    }

    fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AlbumSizes {
    fn add(&mut self, image: &RowImage, [file, pixels]: [u64; 2]) {
        self.patches = self.patches.max(image.grid.patches());
        self.side = self.side.max(image.grid.height.max(image.grid.width) as usize);
        self.pixels = self.pixels.max(pixels);
        self.file = self.file.max(file);
    }
}

impl RowImage {
    /// Reads and decodes it.
    ///
    /// Errors: `image-changed`; those of reading and decoding.
    pub(crate) fn prepare(&self, processor: &Processor) -> Result<Prepared> {
        let bytes = read(&self.file, self.folder.as_ref())?;
        if hash(&bytes) != self.hash {
            let message = format!("{}: its file has changed since the run began", self.place);
            return Err(Error::new("image-changed", message)
                .hint("put it back as it was and resume, or begin a new run with the new images"));
        }
        prepare(&bytes, processor).map_err(|fault| fault.at(&self.place))
    }
}

/// Returns the file of an image with its name in the row; a name needs a folder.
fn file_of(source: ImageSource, folder: Option<&Arc<ImageFolder>>) -> Result<(SampleImage, Option<String>)> {
    match (source, folder) {
        (ImageSource::Bytes(bytes), _) => Ok((SampleImage::Bytes(bytes.into()), None)),
        (ImageSource::Path(name), Some(folder)) => {
            Ok((SampleImage::Path(folder.path_of(&name)?), Some(name)))
        }
        (ImageSource::Path(name), None) => {
            Err(Error::new("image-missing", format!("{name:?}: a row that no file has names no file"))
                .hint("give the image's bytes"))
        }
    }
}

fn read<'f>(file: &'f SampleImage, folder: Option<&Arc<ImageFolder>>) -> Result<Cow<'f, [u8]>> {
    match file {
        SampleImage::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
        SampleImage::Path(path) => {
            let folder = folder.expect("a file has a folder");
            let name = ImageSource::Path(path.to_string_lossy().into_owned());
            name.read(folder).map(|bytes| Cow::Owned(bytes.into_owned()))
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn too_many() -> Error {
    Error::new("image-count", "the images of this process have more vectors than there are numbers")
        .hint("resume the run: a new process counts anew")
}
