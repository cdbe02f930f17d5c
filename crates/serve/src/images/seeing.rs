//! Runs the tower for requests of the queue, one image between two passes.

use super::decoding::QueuedImages;
use super::vectors::VectorRoom;
use crate::state::QueuedRequest;
use plimsoll_base::Result;
use plimsoll_images::Prepared;
use plimsoll_rollout::AskImage;
use std::collections::VecDeque;
use std::sync::Arc;

/// Computes vectors of images into the table that the engine reads.
pub trait ImageTower {
    /// Computes the vectors of an image, from vector `first` of the table on.
    ///
    /// Errors: those of the device.
    fn see(&mut self, image: &Prepared, first: u32) -> Result<()>;
}

/// The tower with the table's room.
pub(crate) struct Seeing<'h> {
    tower: &'h mut dyn ImageTower,
    room: Arc<VectorRoom>,
    /// Rows of the embedding: the number of vector 0.
    vocab: u32,
}

impl<'h> Seeing<'h> {
    pub(crate) fn new(tower: &'h mut dyn ImageTower, vectors: usize, vocab: u32) -> Seeing<'h> {
        Seeing { tower, room: VectorRoom::new(vectors), vocab }
    }

    /// Sees one image of the first request that has one. A request has its range before any that came later, so none
    /// waits forever. Returns false if there is nothing to see, or no room.
    ///
    /// Errors: those of the device.
    pub(crate) fn see_one(&mut self, queue: &mut VecDeque<QueuedRequest>) -> Result<bool> {
        let waits =
            |request: &&mut QueuedRequest| request.prompt.images.as_ref().is_some_and(QueuedImages::waits);
        let Some(request) = queue.iter_mut().find(waits) else { return Ok(false) };
        let prompt = &mut request.prompt;
        let images = prompt.images.as_mut().expect("it has images");
        if images.held.is_none() {
            let Some(held) = self.room.take(images.vectors, &mut images.permit) else { return Ok(false) };
            for id in prompt.token_ids.iter_mut().filter(|id| **id >= self.vocab) {
                *id += held.first();
            }
            images.held = Some(Arc::new(held));
        }
        let (seen, first) = (images.grids.len() - images.unseen.len(), images.ask()[0].first);
        let before: u32 = images.grids[..seen].iter().map(|[rows, columns]| rows * columns).sum();
        let image = images.unseen.pop_front().expect("one waits");
        self.tower.see(&image, first + before)?;
        Ok(true)
    }
}

impl QueuedImages {
    /// True if images are still to be seen.
    pub(crate) fn waits(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// Returns where the images are in the table, whose part is held.
    pub(crate) fn ask(&self) -> Vec<AskImage> {
        let mut first = self.held.as_ref().expect("a part of the table").first();
        let at = |(&[rows, columns], &content): (&[u32; 2], &[u8; 32])| {
            let image = AskImage { first, rows, columns, content };
            first += rows * columns;
            image
        };
        self.grids.iter().zip(&self.contents).map(at).collect()
    }
}
