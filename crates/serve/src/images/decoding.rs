//! Decodes the images of requests, one at a time, on a thread that may block. A request first takes its share of the
//! table of vectors, so that decoded pixels are bounded as vectors are.

use super::vectors::HeldVectors;
use super::{BODIES_HELD, GivenImage, IMAGE_TEXT_BYTES, ServedImages};
use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::Error;
use plimsoll_images::{Prepared, Processor, prepare};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets images in: each of its parts is a bound.
pub struct ImageDoor {
    processor: Processor,
    /// Bytes of images that wait to be decoded.
    waiting: Arc<Semaphore>,
    /// Vectors of the table that no request has a claim to.
    vectors: Arc<Semaphore>,
    /// One image is decoded at a time.
    turn: Semaphore,
}

/// Holds the images of a prompt, from the queue until its last response has ended.
pub struct QueuedImages {
    /// Those that no tower has seen.
    pub unseen: VecDeque<Prepared>,
    /// Rows and columns of each image's vectors.
    pub grids: Vec<[u32; 2]>,
    /// A hash of each image's file.
    pub contents: Vec<[u8; 32]>,
    /// Vectors of all images.
    pub vectors: u32,
    /// The part of the table, once there is room.
    pub held: Option<Arc<HeldVectors>>,
    /// The claim to that part.
    pub permit: Option<OwnedSemaphorePermit>,
}

impl ImageDoor {
    pub fn new(served: &ServedImages) -> ImageDoor {
        ImageDoor {
            processor: served.processor,
            waiting: Arc::new(Semaphore::new(BODIES_HELD * IMAGE_TEXT_BYTES)),
            vectors: Arc::new(Semaphore::new(served.vectors)),
            turn: Semaphore::new(1),
        }
    }

    /// Waits for room in the table and decodes images; none for a prompt without any.
    ///
    /// Errors: `serve-queue-full` if too many bytes wait; those of decoding.
    pub async fn enter(&self, given: Vec<GivenImage>) -> Reply<Option<QueuedImages>> {
        if given.is_empty() {
            return Ok(None);
        }
        let (bytes, vectors) = given
            .iter()
            .fold((0, 0), |(bytes, vectors), image| (bytes + image.bytes.len(), vectors + image.tokens));
        let _waiting = self.waiting.clone().try_acquire_many_owned(bytes as u32).map_err(|_| {
            let message = format!("{bytes} more bytes of images have no room: others wait to be seen");
            Error::new("serve-queue-full", message)
                .hint("try again later, or start the server with a larger --images")
        })?;
        let permit =
            self.vectors.clone().acquire_many_owned(vectors as u32).await.expect("it is never closed");
        let (mut unseen, mut grids) = (VecDeque::with_capacity(given.len()), Vec::with_capacity(given.len()));
        let mut contents = Vec::with_capacity(given.len());
        for image in given {
            let (prepared, content) = self.decode(image).await?;
            let merge = self.processor.merge;
            grids.push([prepared.grid.height / merge, prepared.grid.width / merge]);
            unseen.push_back(prepared);
            contents.push(content);
        }
        let vectors = vectors as u32;
        Ok(Some(QueuedImages { unseen, grids, contents, vectors, held: None, permit: Some(permit) }))
    }

    /// Returns the pixels of an image, and a hash of its file.
    async fn decode(&self, image: GivenImage) -> Reply<(Prepared, [u8; 32])> {
        let _turn = self.turn.acquire().await.expect("it is never closed");
        let processor = self.processor;
        let decode = move || {
            let place = image.place;
            prepare(&image.bytes, &processor)
                .map(|prepared| (prepared, Sha256::digest(&image.bytes).into()))
                .map_err(|fault| Refusal { error: fault.at(&place), param: Some(place) })
        };
        match tokio::task::spawn_blocking(decode).await {
            Ok(decoded) => Ok(decoded?),
            Err(_) => Err(Error::new("internal", "decoding an image ended with a fault in plimsoll").into()),
        }
    }
}
