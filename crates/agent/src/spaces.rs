//! Conversions between the slots of an environment and the numbers of a policy: an observation becomes a flat row of
//! f32, and an action row of f32 becomes a slot.
//!
//! A choice among n is n numbers, one of which is 1. Other numbers are not rescaled;
//! `environment.normalise_observations` does that.

use plimsoll_base::{Error, Result};
use plimsoll_env::{Domain, ElementType, Leaf, Slot};
use plimsoll_model::mlp::MlpHead;

/// Largest width of a flat observation. A larger observation is an image, for which a small network is no policy.
const WIDTH_MAX: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub struct ObservationReader {
    leaves: Vec<Leaf>,
    width: usize,
}

impl ObservationReader {
    /// Returns the reader of a slot.
    ///
    /// Errors: `policy-space-mismatch` for observations with more numbers than a small network is made for.
    pub fn of(slot: &Slot) -> Result<ObservationReader> {
        let of = |leaf: &Leaf| match &leaf.domain {
            Domain::Choice { n, .. } => *n,
            Domain::Choices { nvec } => nvec.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)),
            Domain::Bounds { .. } | Domain::Binary => leaf.num_elements as u64,
        };
        let width = slot.leaves.iter().map(of).fold(0, u64::saturating_add);
        if width > WIDTH_MAX {
            let message =
                format!("an observation is {width} numbers, a small network takes at most {WIDTH_MAX}");
            return Err(Error::new("policy-space-mismatch", message)
                .hint("wrap the environment so that it shows features instead of pictures"));
        }
        Ok(ObservationReader { leaves: slot.leaves.clone(), width: width as usize })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes the observation in `slot` into `row`, [width].
    pub fn read(&self, slot: &[u8], row: &mut [f32]) {
        let mut rest = row;
        for leaf in &self.leaves {
            let (bytes, each) = (leaf.of(slot), leaf.element.bytes());
            match &leaf.domain {
                Domain::Choice { n, start } => {
                    rest = one_of(leaf.element.read(bytes) - *start as f64, *n, rest);
                }
                Domain::Choices { nvec } => {
                    for (element, n) in bytes.chunks_exact(each).zip(nvec) {
                        rest = one_of(leaf.element.read(element), *n, rest);
                    }
                }
                Domain::Bounds { .. } | Domain::Binary => {
                    let (here, after) = rest.split_at_mut(leaf.num_elements);
                    if leaf.element == ElementType::Float32 {
                        let elements = bytes.as_chunks::<4>().0;
                        here.iter_mut().zip(elements).for_each(|(to, from)| *to = f32::from_ne_bytes(*from));
                    } else {
                        let elements = bytes.chunks_exact(each);
                        here.iter_mut()
                            .zip(elements)
                            .for_each(|(to, from)| *to = leaf.element.read(from) as f32);
                    }
                    rest = after;
                }
            }
        }
    }
}

/// Writes `n` numbers, of which number `chosen` is 1; returns the rest of the row.
fn one_of(chosen: f64, n: u64, row: &mut [f32]) -> &mut [f32] {
    let (here, after) = row.split_at_mut(n as usize);
    here.fill(0.0);
    if let Some(hit) = here.get_mut(chosen as usize) {
        *hit = 1.0;
    }
    after
}

#[derive(Clone, Debug)]
pub struct ActionWriter {
    leaf: Leaf,
    head: MlpHead,
}

impl ActionWriter {
    /// Returns the writer of a slot.
    ///
    /// Errors: `policy-space-mismatch` for spaces of several parts and for whole numbers within bounds.
    pub fn of(slot: &Slot) -> Result<ActionWriter> {
        let unsupported = |what: &str| {
            let takes = "Discrete, MultiDiscrete, MultiBinary, or a Box of float32 or float64";
            let message = format!("the action space is {what}; the policy network takes {takes}");
            Err(Error::new("policy-space-mismatch", message)
                .hint("wrap the environment to give it such a space"))
        };
        let [leaf] = &slot.leaves[..] else { return unsupported("of several parts") };
        let small = |n: u64| u32::try_from(n).ok().filter(|&n| u64::from(n) <= WIDTH_MAX);
        let sizes = match &leaf.domain {
            Domain::Choice { n, .. } => small(*n).map(|n| vec![n]),
            Domain::Choices { nvec } => nvec.iter().map(|&n| small(n)).collect(),
            Domain::Binary => small(leaf.num_elements as u64).map(|n| vec![2; n as usize]),
            Domain::Bounds { .. } => {
                let is_float = matches!(leaf.element, ElementType::Float32 | ElementType::Float64);
                return match small(leaf.num_elements as u64) {
                    Some(dims) if is_float => {
                        Ok(ActionWriter { leaf: leaf.clone(), head: MlpHead::Gaussian(dims) })
                    }
                    _ => unsupported(&format!("a Box of {} x {}", leaf.num_elements, leaf.element.name())),
                };
            }
        };
        match sizes.filter(|sizes| sizes.iter().map(|&n| u64::from(n)).sum::<u64>() <= WIDTH_MAX) {
            Some(sizes) => Ok(ActionWriter { leaf: leaf.clone(), head: MlpHead::Categorical(sizes) }),
            None => unsupported(&format!("of more than {WIDTH_MAX} choices")),
        }
    }

    pub fn head(&self) -> &MlpHead {
        &self.head
    }

    pub fn write(&self, action: &[f32], slot: &mut [u8]) {
        let (start, each) = (self.start(), self.leaf.element.bytes());
        let part = &mut slot[self.leaf.offset..self.leaf.offset + self.leaf.bytes()];
        for (element, &x) in part.chunks_exact_mut(each).zip(action) {
            self.leaf.element.write(f64::from(x) + start, element);
        }
    }

    /// Reads what `write` wrote.
    pub fn read(&self, slot: &[u8], action: &mut [f32]) {
        let (start, each) = (self.start(), self.leaf.element.bytes());
        for (element, x) in self.leaf.of(slot).chunks_exact(each).zip(action) {
            *x = (self.leaf.element.read(element) - start) as f32;
        }
    }

    fn start(&self) -> f64 {
        if let Domain::Choice { start, .. } = self.leaf.domain { start as f64 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_env::Space;

    fn slot(space: &Space) -> Slot {
        Slot::of(space).unwrap()
    }

    #[test]
    fn choices_become_ones_and_numbers_stay() {
        let space = Space::Tuple {
            spaces: vec![
                Space::Discrete { n: 3, start: -1 },
                Space::box_f32(&[2], -1.0, 1.0),
                Space::MultiDiscrete { nvec: vec![2, 2] },
                Space::Box { dtype: ElementType::Uint8, shape: vec![1], low: vec![0.0], high: vec![255.0] },
            ],
        };
        let slot = slot(&space);
        let reader = ObservationReader::of(&slot).unwrap();
        let mut bytes = vec![0; slot.bytes];
        for (leaf, values) in slot.leaves.iter().zip([&[1.0][..], &[0.25, -0.5], &[0.0, 1.0], &[200.0]]) {
            for (i, value) in values.iter().enumerate() {
                leaf.element.write(*value, &mut bytes[leaf.offset + i * leaf.element.bytes()..]);
            }
        }
        let mut row = vec![9.0; reader.width()];
        reader.read(&bytes, &mut row);
        assert_eq!(row, [0.0, 0.0, 1.0, 0.25, -0.5, 1.0, 0.0, 0.0, 1.0, 200.0]);
    }

    #[test]
    fn an_action_reads_back_as_it_was_written() {
        for (space, action) in [
            (Space::Discrete { n: 3, start: -1 }, vec![2.0]),
            (Space::MultiDiscrete { nvec: vec![2, 5] }, vec![1.0, 4.0]),
            (Space::MultiBinary { shape: vec![2] }, vec![0.0, 1.0]),
            (Space::box_f32(&[2], -1.0, 1.0), vec![0.5, -3.0]),
        ] {
            let slot = slot(&space);
            let writer = ActionWriter::of(&slot).unwrap();
            assert_eq!(writer.head().action_dims(), action.len());
            let (mut bytes, mut back) = (vec![0; slot.bytes], vec![9.0; action.len()]);
            writer.write(&action, &mut bytes);
            writer.read(&bytes, &mut back);
            assert_eq!(back, action);
        }
    }

    #[test]
    fn spaces_that_a_small_network_has_no_head_for_are_refused() {
        let ints = Space::Box { dtype: ElementType::Int32, shape: vec![1], low: vec![0.0], high: vec![3.0] };
        let two = Space::Tuple { spaces: vec![Space::discrete(2), Space::discrete(2)] };
        for space in [ints, two, Space::discrete(1 << 20)] {
            assert_eq!(ActionWriter::of(&slot(&space)).unwrap_err().slug, "policy-space-mismatch");
        }
        let error = ObservationReader::of(&slot(&Space::discrete(1 << 20))).unwrap_err();
        assert_eq!(error.slug, "policy-space-mismatch");
    }
}
