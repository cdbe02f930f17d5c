//! Asks the system to read a model's tensors a little before they are read: the disk is then busy while values are
//! converted and copied. Threads that read pieces of one file look random to the system, which reads little ahead.

use crate::open::OpenModel;
use crate::tensors::TensorInfo;

/// Bytes that are asked for before they are read: what a disk of 2.5 GB/s gives in a twentieth of a second, and few
/// enough to stay in the page cache of a small container.
const AHEAD_BYTES: u64 = 128 << 20;
/// Bytes of one request: Linux reads no more for it than the larger of a device's longest request and its read-ahead.
const REQUEST_BYTES: u64 = 1 << 20;

/// The tensors that are still to be asked for.
#[derive(Debug)]
pub struct ReadAhead<'a> {
    model: &'a OpenModel,
    /// In the order of reading, each with the bytes that were asked for; the last one comes first.
    rest: Vec<(&'a TensorInfo, u64)>,
    /// Bytes that may be asked for now.
    room: u64,
}

impl<'a> ReadAhead<'a> {
    /// Asks for the first of the tensors that will be read, in this order. Names that the model lacks are left out.
    pub fn new<'n>(model: &'a OpenModel, names: impl Iterator<Item = &'n str>) -> ReadAhead<'a> {
        let mut rest: Vec<_> = names.filter_map(|name| Some((model.tensor(name)?, 0))).collect();
        rest.reverse();
        let mut ahead = ReadAhead { model, rest, room: 0 };
        ahead.passed(AHEAD_BYTES);
        ahead
    }

    /// Takes note of bytes that were read, and asks for as many more.
    pub fn passed(&mut self, bytes: u64) {
        self.room += bytes;
        while let Some((tensor, asked)) = self.rest.last_mut() {
            let piece = REQUEST_BYTES.min(tensor.bytes - *asked);
            if piece > self.room {
                return;
            }
            self.model.will_read(tensor, *asked, piece);
            self.room -= piece;
            *asked += piece;
            if *asked == tensor.bytes {
                self.rest.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_asked_for_than_was_passed_and_in_the_end_all_of_it_is() {
        let model = OpenModel::open("builtin:nano", None, false).unwrap();
        let names: Vec<&str> = model.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let all: u64 = model.tensors.iter().map(|tensor| tensor.bytes).sum();
        let mut ahead = ReadAhead::new(&model, ["absent"].into_iter().chain(names.iter().copied()));
        // A model smaller than what is asked for ahead.
        assert!(all < AHEAD_BYTES && ahead.rest.is_empty());
        // The same with less room.
        ahead.rest = model.tensors.iter().rev().map(|tensor| (tensor, 0)).collect();
        ahead.room = 0;
        let left = |ahead: &ReadAhead<'_>| {
            ahead.rest.iter().map(|(tensor, asked)| tensor.bytes - asked).sum::<u64>()
        };
        let mut passed = 0;
        while passed < all {
            let step = 10_000.min(all - passed);
            ahead.passed(step);
            passed += step;
            assert_eq!(all - left(&ahead) + ahead.room, passed);
        }
        assert!(ahead.rest.is_empty());
    }
}
