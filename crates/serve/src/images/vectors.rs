//! Deals out the table of vectors: a request has one range of it, from before its images are seen until its last
//! response has ended. Numbers of vectors in flight are unique, so no prompt takes an image for another.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OwnedSemaphorePermit;

/// The table's ranges that are taken.
pub struct VectorRoom {
    vectors: u32,
    /// Ascending; no two overlap.
    taken: Mutex<Vec<Range<u32>>>,
}

/// Holds a range of the table until it is dropped.
pub struct HeldVectors {
    room: Arc<VectorRoom>,
    range: Range<u32>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl VectorRoom {
    pub fn new(vectors: usize) -> Arc<VectorRoom> {
        let vectors = u32::try_from(vectors).expect("the table fits in the arena");
        Arc::new(VectorRoom { vectors, taken: Mutex::default() })
    }

    /// Takes the first range of `count` vectors that is free; none if there is none now. An empty table has room for
    /// every request.
    pub fn take(
        self: &Arc<Self>,
        count: u32,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Option<HeldVectors> {
        let mut taken = self.lock();
        let ends = std::iter::once(0).chain(taken.iter().map(|range| range.end));
        let begins = taken.iter().map(|range| range.start).chain([self.vectors]);
        let (at, first) = ends
            .zip(begins)
            .enumerate()
            .find_map(|(at, (end, begin))| (begin - end >= count).then_some((at, end)))?;
        let range = first..first + count;
        taken.insert(at, range.clone());
        drop(taken);
        Some(HeldVectors { room: self.clone(), range, _permit: permit.take() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Range<u32>>> {
        self.taken.lock().expect("no holder panics")
    }
}

impl HeldVectors {
    /// Returns the first vector.
    pub fn first(&self) -> u32 {
        self.range.start
    }
}

impl Drop for HeldVectors {
    fn drop(&mut self) {
        self.room.lock().retain(|range| *range != self.range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_their_room_comes_back() {
        let room = VectorRoom::new(10);
        let take = |count| room.take(count, &mut None);
        let [first, second, third] = [4, 3, 3].map(|count| take(count).expect("it has room"));
        assert_eq!([first.first(), second.first(), third.first()], [0, 4, 7]);
        assert!(take(1).is_none());
        drop(second);
        assert!(take(4).is_none());
        let again = take(2).expect("the room of the second");
        assert_eq!(again.first(), 4);
        drop((first, third));
        assert_eq!(take(4).map(|held| held.first()), Some(0), "before the others");
        assert!(take(11).is_none());
        drop(again);
        assert_eq!(take(10).map(|held| held.first()), Some(0));
    }
}
