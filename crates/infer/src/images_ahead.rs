//! Images of the next step, which are decoded while this one runs. What is there is what would be decoded where it is
//! needed: an image that cannot be read, or that has changed, is left to the one who needs it, with its error.

use crate::album::{Processor, RowImage};
use plimsoll_images::Prepared;
use plimsoll_plan::DECODERS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Decoded images by their first vectors.
type Decoded = BTreeMap<u32, Prepared>;

/// The images that a next step is expected to need.
pub(crate) struct ImagesAhead {
    /// Most bytes of pixels.
    bytes_max: u64,
    expected: Vec<Arc<RowImage>>,
    there: Decoded,
    work: Option<Work>,
}

/// The threads that decode, and what they share.
struct Work {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    processor: Processor,
    images: Vec<Arc<RowImage>>,
    next: AtomicUsize,
    stops: AtomicBool,
    done: Mutex<Decoded>,
}

impl ImagesAhead {
    /// Begins without an image. `bytes_max`: the most bytes of pixels; 0 decodes nothing ahead.
    pub(crate) fn new(bytes_max: u64) -> ImagesAhead {
        ImagesAhead { bytes_max, expected: Vec::new(), there: Decoded::new(), work: None }
    }

    /// Notes the images that the next step will need, in their order: those beyond the bound are left out. Nothing is
    /// decoded before `begin`.
    pub(crate) fn expect(
        &mut self,
        images: impl Iterator<Item = Arc<RowImage>>,
        bytes_of: impl Fn(&RowImage) -> u64,
    ) {
        let (mut left, mut known) = (self.bytes_max, BTreeSet::new());
        let has_room = |image: &Arc<RowImage>| {
            let bytes = if known.insert(image.first) { bytes_of(image) } else { 0 };
            left.checked_sub(bytes).map(|after| left = after).is_some()
        };
        self.expected = images.take_while(has_room).collect();
    }

    /// Takes an image of those that are there.
    pub(crate) fn take(&mut self, first: u32) -> Option<Prepared> {
        self.there.remove(&first)
    }

    /// Waits for the images that are being decoded now; others are not begun.
    pub(crate) fn pause(&mut self) {
        let Some(Work { shared, threads }) = self.work.take() else { return };
        shared.stops.store(true, Ordering::Relaxed);
        // Decoding turns a panic of a decoder into an error.
        threads.into_iter().for_each(|thread| _ = thread.join());
        self.there.append(&mut shared.done());
    }

    /// Begins to decode what is expected and not there, and forgets what is not expected.
    pub(crate) fn begin(&mut self, processor: Processor) {
        self.pause();
        let expected: BTreeSet<u32> = self.expected.iter().map(|image| image.first).collect();
        self.there.retain(|first, _| expected.contains(first));
        let mut missing = expected;
        missing.retain(|first| !self.there.contains_key(first));
        let images: Vec<Arc<RowImage>> =
            self.expected.iter().filter(|image| missing.remove(&image.first)).cloned().collect();
        if images.is_empty() {
            return;
        }
        let (next, stops, done) = Default::default();
        let shared = Arc::new(Shared { processor, images, next, stops, done });
        let begin = |_| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("images-ahead".into());
            // Without a thread they are decoded where they are needed.
            thread.spawn(move || shared.decode()).ok()
        };
        let threads = (0..DECODERS.min(shared.images.len())).filter_map(begin).collect();
        self.work = Some(Work { shared, threads });
    }
}

impl Drop for ImagesAhead {
    fn drop(&mut self) {
        self.pause();
    }
}

impl Shared {
    fn decode(&self) {
        while !self.stops.load(Ordering::Relaxed) {
            let Some(image) = self.images.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            if let Ok(prepared) = image.prepare(&self.processor) {
                self.done().insert(image.first, prepared);
            }
        }
    }

    fn done(&self) -> MutexGuard<'_, Decoded> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
