//! A space flattened to leaves in a slot of fixed bytes: the layout of a worker's memory, a policy's input and a batch.
//!
//! Leaves are in the order of the space (names of a Dict sorted), each aligned to its element. A slot is a multiple of
//! its largest element, so a row of slots is a strided array of each leaf.

use crate::{ElementType, Space};
use plimsoll_base::{Error, Result};
use std::fmt;

/// Largest slot; a larger observation should be a file.
pub const SLOT_BYTES_MAX: usize = 1 << 30;
/// Most leaves of a space.
const LEAVES_MAX: usize = 256;
/// Deepest nesting.
const DEPTH_MAX: usize = 16;

/// The values that a leaf's elements may have.
#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    /// Within bounds: one of each for all elements, or one an element.
    Bounds {
        /// Lower bounds.
        low: Vec<f64>,
        /// Upper bounds.
        high: Vec<f64>,
    },
    /// One of `start .. start + n`.
    Choice {
        /// Number of values.
        n: u64,
        /// The smallest value.
        start: i64,
    },
    /// Element `i` is one of `0 .. nvec[i]`.
    Choices {
        /// Number of values of each.
        nvec: Vec<u64>,
    },
    /// 0 or 1.
    Binary,
}

/// One array of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Names and indices from the root, joined by dots; empty if the space is one leaf.
    pub path: String,
    /// Type of an element.
    pub element: ElementType,
    /// Axes, outermost first; empty for one number.
    pub shape: Vec<usize>,
    /// First byte in the slot, a multiple of the element's bytes.
    pub offset: usize,
    /// Number of elements.
    pub num_elements: usize,
    /// Their allowed values.
    pub domain: Domain,
}

impl Leaf {
    /// Returns the bytes of the leaf in a slot.
    pub fn bytes(&self) -> usize {
        self.num_elements * self.element.bytes()
    }

    /// Returns the leaf's bytes in `slot`.
    pub fn of<'a>(&self, slot: &'a [u8]) -> &'a [u8] {
        &slot[self.offset..self.offset + self.bytes()]
    }
}

/// The leaves of a space and their total bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Leaves by ascending offset.
    pub leaves: Vec<Leaf>,
    /// Bytes of a slot.
    pub bytes: usize,
}

/// A value outside its space.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfSpace {
    /// Path of the leaf.
    pub path: String,
    /// Index of the element.
    pub element_index: usize,
    /// Its value.
    pub value: f64,
    /// The allowed values, as a sentence.
    pub allowed: String,
}

impl fmt::Display for OutOfSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "`{}`: ", self.path)?;
        }
        write!(f, "element {} is {}, allowed is {}", self.element_index, self.value, self.allowed)
    }
}

impl Slot {
    /// Returns the slot of a space.
    ///
    /// Errors: `env-space-unsupported` for a space without elements, with bounds that do not match it, or too large.
    pub fn of(space: &Space) -> Result<Slot> {
        let mut slot = Slot { leaves: Vec::new(), bytes: 0 };
        slot.add(space, String::new(), 0)?;
        if slot.leaves.is_empty() {
            return Err(unsupported("", "it has no element"));
        }
        let mut paths: Vec<&str> = slot.leaves.iter().map(|leaf| leaf.path.as_str()).collect();
        paths.sort_unstable();
        if let Some(pair) = paths.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(unsupported(pair[0], "two of its parts have this name"));
        }
        let align = slot.leaves.iter().map(|leaf| leaf.element.bytes()).max().unwrap_or(1);
        slot.bytes = slot.bytes.next_multiple_of(align);
        Ok(slot)
    }

    /// Finds the first value of `slot` outside the space; NaN is always outside.
    pub fn check(&self, slot: &[u8]) -> std::result::Result<(), OutOfSpace> {
        self.leaves.iter().try_for_each(|leaf| leaf.check(leaf.of(slot)))
    }

    /// Clips each element of a leaf with bounds; NaN stays.
    pub fn clip(&self, slot: &mut [u8]) {
        for leaf in &self.leaves {
            let Domain::Bounds { low, high } = &leaf.domain else { continue };
            let bytes = leaf.element.bytes();
            let part = &mut slot[leaf.offset..leaf.offset + leaf.bytes()];
            for (index, element) in part.chunks_exact_mut(bytes).enumerate() {
                let value = leaf.element.read(element);
                let clipped = value.max(at(low, index)).min(at(high, index));
                if !value.is_nan() && value != clipped {
                    leaf.element.write(clipped, element);
                }
            }
        }
    }

    fn add(&mut self, space: &Space, path: String, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(unsupported(&path, &format!("it is nested more than {DEPTH_MAX} deep")));
        }
        let join = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        match space {
            Space::Box { dtype, shape, low, high } => {
                let domain = Domain::Bounds { low: low.clone(), high: high.clone() };
                self.push(path, *dtype, shape, domain)
            }
            Space::Discrete { n, start } => {
                let domain = Domain::Choice { n: *n, start: *start };
                self.push(path, ElementType::Int64, &[], domain)
            }
            Space::MultiDiscrete { nvec } => {
                let domain = Domain::Choices { nvec: nvec.clone() };
                self.push(path, ElementType::Int64, &[nvec.len()], domain)
            }
            Space::MultiBinary { shape } => self.push(path, ElementType::Int8, shape, Domain::Binary),
            Space::Dict { spaces } => {
                let mut sorted: Vec<&(String, Space)> = spaces.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                sorted.iter().try_for_each(|(name, part)| self.add(part, join(name), depth + 1))
            }
            Space::Tuple { spaces } => spaces
                .iter()
                .enumerate()
                .try_for_each(|(index, part)| self.add(part, join(&index.to_string()), depth + 1)),
        }
    }

    fn push(&mut self, path: String, element: ElementType, shape: &[usize], domain: Domain) -> Result<()> {
        let num_elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let offset = self.bytes.next_multiple_of(element.bytes());
        let end = num_elements
            .and_then(|n| n.checked_mul(element.bytes()))
            .and_then(|bytes| bytes.checked_add(offset))
            .filter(|&end| end <= SLOT_BYTES_MAX);
        let (Some(num_elements), Some(end)) = (num_elements, end) else {
            let why = format!("shape {shape:?} takes more than {SLOT_BYTES_MAX} bytes");
            return Err(unsupported(&path, &why));
        };
        domain.matches(num_elements).map_err(|why| unsupported(&path, &why))?;
        if self.leaves.len() == LEAVES_MAX {
            return Err(unsupported(&path, &format!("there are more than {LEAVES_MAX} leaves")));
        }
        self.leaves.push(Leaf { path, element, shape: shape.to_vec(), offset, num_elements, domain });
        self.bytes = end;
        Ok(())
    }
}

impl Leaf {
    /// Finds the first element outside its domain. `bytes` are those of this leaf alone.
    pub fn check(&self, bytes: &[u8]) -> std::result::Result<(), OutOfSpace> {
        let mut elements = bytes.chunks_exact(self.element.bytes()).enumerate();
        let wrong = match &self.domain {
            Domain::Choice { n, start } => {
                let value = i64::from_ne_bytes(*bytes.first_chunk().expect("a choice is an int64"));
                let is_in = value.checked_sub(*start).is_some_and(|from| (0..*n as i64).contains(&from));
                (!is_in).then(|| (0, value as f64, format!("{start} to {}", start + *n as i64 - 1)))
            }
            Domain::Choices { nvec } => elements.zip(nvec).find_map(|((index, element), &n)| {
                let value = self.element.read(element);
                let is_in = value >= 0.0 && value < n as f64;
                (!is_in).then(|| (index, value, format!("0 to {}", n - 1)))
            }),
            Domain::Binary => elements.find_map(|(index, element)| {
                (element[0] > 1).then(|| (index, f64::from(element[0] as i8), "0 or 1".into()))
            }),
            Domain::Bounds { low, high } => elements.find_map(|(index, element)| {
                let (value, low, high) = (self.element.read(element), at(low, index), at(high, index));
                let is_in = value >= low && value <= high;
                (!is_in).then(|| (index, value, format!("{low} to {high}")))
            }),
        };
        let Some((element_index, value, allowed)) = wrong else { return Ok(()) };
        Err(OutOfSpace { path: self.path.clone(), element_index, value, allowed })
    }
}

impl Domain {
    /// Returns why the domain does not fit that many elements.
    fn matches(&self, num_elements: usize) -> std::result::Result<(), String> {
        match self {
            _ if num_elements == 0 => Err("it has no element".into()),
            Domain::Choice { n, .. } if *n == 0 || *n > i64::MAX as u64 => Err(format!("Discrete({n})")),
            Domain::Choice { n, start } if start.checked_add(*n as i64).is_none() => {
                Err(format!("Discrete({n}) from {start} goes beyond 64 bits"))
            }
            Domain::Choices { nvec } if nvec.contains(&0) => {
                Err("MultiDiscrete with a choice of nothing".into())
            }
            Domain::Bounds { low, high } => {
                let fits = |bounds: &[f64]| bounds.len() == 1 || bounds.len() == num_elements;
                let in_order = || (0..num_elements).all(|index| at(low, index) <= at(high, index));
                if !fits(low) || !fits(high) {
                    return Err(format!(
                        "{} and {} bounds for {num_elements} elements",
                        low.len(),
                        high.len()
                    ));
                }
                in_order().then_some(()).ok_or("a lower bound above its upper one, or not a number".into())
            }
            _ => Ok(()),
        }
    }
}

fn at(bounds: &[f64], index: usize) -> f64 {
    if bounds.len() == 1 { bounds[0] } else { bounds[index] }
}

fn unsupported(path: &str, why: &str) -> Error {
    let place = if path.is_empty() { String::new() } else { format!(" `{path}`") };
    Error::new("env-space-unsupported", format!("space{place}: {why}")).hint(
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of fixed sizes are supported; wrap others",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(space: &Space) -> (Vec<(String, usize)>, usize) {
        let slot = Slot::of(space).unwrap();
        (slot.leaves.into_iter().map(|leaf| (leaf.path, leaf.offset)).collect(), slot.bytes)
    }

    #[test]
    fn leaves_are_sorted_aligned_and_padded() {
        let image =
            Space::Box { dtype: ElementType::Uint8, shape: vec![3], low: vec![0.0], high: vec![255.0] };
        let space = Space::Dict {
            spaces: vec![
                ("z".into(), Space::discrete(4)),
                ("a".into(), Space::Tuple { spaces: vec![image.clone(), Space::box_f32(&[], 0.0, 1.0)] }),
            ],
        };
        let expect = vec![("a.0".to_string(), 0), ("a.1".to_string(), 4), ("z".to_string(), 8)];
        assert_eq!(offsets(&space), (expect, 16));
        assert_eq!(offsets(&image), (vec![(String::new(), 0)], 3));
        assert_eq!(offsets(&Space::MultiBinary { shape: vec![2, 3] }).1, 6);
    }

    #[test]
    fn values_outside_the_space_are_named() {
        let check = |space: &Space, write: &dyn Fn(&mut [u8])| {
            let slot = Slot::of(space).unwrap();
            let mut bytes = vec![0; slot.bytes];
            write(&mut bytes);
            slot.check(&bytes).map_err(|wrong| wrong.to_string())
        };
        let choice = Space::Discrete { n: 2, start: -1 };
        let int = |value: i64| move |bytes: &mut [u8]| bytes[..8].copy_from_slice(&value.to_ne_bytes());
        assert_eq!(check(&choice, &int(-1)), Ok(()));
        assert_eq!(check(&choice, &int(1)), Err("element 0 is 1, allowed is -1 to 0".into()));
        assert!(check(&choice, &int(i64::MIN)).is_err());
        let choices = Space::MultiDiscrete { nvec: vec![1, 3] };
        assert_eq!(check(&choices, &|bytes| bytes[8] = 2), Ok(()));
        assert!(check(&choices, &|bytes| bytes[8] = 3).is_err());
        assert!(check(&Space::MultiBinary { shape: vec![2] }, &|bytes| bytes[1] = 2).is_err());
        let float = |value: f32| move |bytes: &mut [u8]| bytes[..4].copy_from_slice(&value.to_ne_bytes());
        let bounded = Space::box_f32(&[1], -2.0, 2.0);
        assert_eq!(check(&bounded, &float(2.0)), Ok(()));
        assert_eq!(check(&bounded, &float(2.5)), Err("element 0 is 2.5, allowed is -2 to 2".into()));
        assert!(check(&bounded, &float(f32::NAN)).is_err());
        let open = Space::box_f32(&[1], f32::NEG_INFINITY, f32::INFINITY);
        assert!(check(&open, &float(f32::NAN)).is_err() && check(&open, &float(1e30)).is_ok());
    }

    #[test]
    fn clipping_moves_values_into_their_bounds() {
        let slot = Slot::of(&Space::box_f32(&[2], -2.0, 2.0)).unwrap();
        let mut bytes: Vec<u8> = [2.5f32, -0.5].iter().flat_map(|value| value.to_ne_bytes()).collect();
        slot.clip(&mut bytes);
        assert_eq!(bytes, [2.0f32, -0.5].iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>());
    }

    #[test]
    fn spaces_without_a_slot_are_refused() {
        let bounds =
            |low: Vec<f64>| Space::Box { dtype: ElementType::Float64, shape: vec![2], low, high: vec![1.0] };
        let mut deep = Space::discrete(2);
        for _ in 0..20 {
            deep = Space::Tuple { spaces: vec![deep] };
        }
        for space in [
            Space::discrete(0),
            Space::Discrete { n: 2, start: i64::MAX },
            Space::Tuple { spaces: vec![] },
            Space::MultiDiscrete { nvec: vec![2, 0] },
            Space::box_f32(&[0], 0.0, 1.0),
            Space::box_f32(&[1 << 40, 1 << 40], 0.0, 1.0),
            Space::box_f32(&[2], 1.0, 0.0),
            Space::box_f32(&[2], f32::NAN, 0.0),
            bounds(vec![0.0; 3]),
            deep,
            Space::Tuple { spaces: vec![Space::discrete(2); 300] },
        ] {
            assert_eq!(Slot::of(&space).unwrap_err().slug, "env-space-unsupported", "{space:?}");
        }
        assert!(Slot::of(&bounds(vec![0.0, 1.0])).is_ok());
    }
}
