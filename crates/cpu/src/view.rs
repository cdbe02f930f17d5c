//! Buffers as typed memory: the one place where a handle becomes a pointer.

use super::CpuDevice;
use half::bf16;
use plimsoll_base::DType;
use plimsoll_device::codes::{E4M3, E5M3};
use plimsoll_memory::{Buf, Home};
use std::marker::PhantomData;

/// An element that is stored in the arena.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
}

/// An element of weights, activations or gradients.
pub(crate) trait Real: Element {
    /// Widens to f32, exactly.
    fn to_f32(self) -> f32;
    /// Rounds to nearest even.
    fn from_f32(x: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Element for u32 {
    const DTYPE: DType = DType::U32;
}
impl Element for E4M3 {
    const DTYPE: DType = DType::E4M3;
}
impl Element for E5M3 {
    const DTYPE: DType = DType::E5M3;
}

impl Real for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
}

impl Real for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        // Rounds to nearest even on the bits; a NaN keeps its sign and becomes quiet. Branch-free, so loops vectorise.
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let bits = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
        bf16::from_bits((bits >> 16) as u16)
    }
}

/// Memory that several tasks write, each its part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    lives: PhantomData<&'a T>,
}

// SAFETY: elements are reached through unsafe methods only; their callers promise no task writes what another uses.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: elements are reached through unsafe methods only; their callers promise no task writes what another uses.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Returns a slice to write in parts.
    pub(crate) fn of(slice: &'a mut [T]) -> Shared<'a, T> {
        Shared { ptr: slice.as_mut_ptr(), len: slice.len(), lives: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.ptr
    }

    /// Returns elements start..start+len, to read.
    ///
    /// # Safety
    /// While the slice lives, no task writes any of these elements.
    #[inline(always)]
    pub(crate) unsafe fn seen(&self, start: usize, len: usize) -> &[T] {
        assert!(start + len <= self.len, "elements {start}+{len} of {}", self.len);
        // SAFETY: inside the buffer by the assertion; the caller promises that no task writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.ptr.add(start), len) }
    }

    /// Returns elements start..start+len, to write.
    ///
    /// # Safety
    /// While the slice lives, no other task reads or writes any of these elements.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // Disjointness is the caller's promise.
    pub(crate) unsafe fn range(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "elements {start}+{len} of {}", self.len);
        // SAFETY: inside the buffer by the assertion; the caller promises that no other task uses it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}

impl CpuDevice {
    #[allow(clippy::mut_from_ref)] // A thread has one part and runs one task.
    pub(crate) fn thread_scratch<T: Element>(&self, thread: usize) -> &mut [T] {
        let scratch = self.scratch.expect("`bind_scratch` comes before the backward operations");
        assert_eq!(scratch.dtype, T::DTYPE, "scratch of {}", scratch.dtype.name());
        let part = scratch.len / self.pool.threads();
        let start = scratch.offset + (thread * part) as u64 * T::DTYPE.bytes();
        let end = start + part as u64 * T::DTYPE.bytes();
        assert!(thread < self.pool.threads() && end <= self.arena.len() as u64, "scratch of thread {thread}");
        // SAFETY: inside the mapping by the assertion.
        let ptr: *mut T = unsafe { self.arena.base().add(start as usize).cast() };
        assert!(ptr.is_aligned(), "scratch of {} at offset {start}", T::DTYPE.name());
        // SAFETY: inside the mapping and aligned (asserted); the part is this thread's, which runs one task at a time.
        unsafe { std::slice::from_raw_parts_mut(ptr, part) }
    }

    /// Returns a buffer that the operation only reads; one written in place is reached by `write` alone.
    pub(crate) fn read<T: Element>(&self, buf: Buf<'_>) -> &[T] {
        let ptr = self.checked_ptr::<T>(buf);
        // SAFETY: inside the mapping and aligned (checked). The operation has claimed the buffer to read it, so no
        // other writes it, nor does this one through another operand.
        unsafe { std::slice::from_raw_parts(ptr, buf.len()) }
    }

    /// Returns a buffer to write in parts.
    pub(crate) fn write<T: Element>(&self, buf: Buf<'_>) -> Shared<'_, T> {
        Shared { ptr: self.checked_ptr::<T>(buf), len: buf.len(), lives: PhantomData }
    }

    fn checked_ptr<T: Element>(&self, buf: Buf<'_>) -> *mut T {
        assert_eq!(buf.dtype(), T::DTYPE, "a buffer of {} read as {}", buf.dtype().name(), T::DTYPE.name());
        let memory = match buf.home() {
            Home::Arena => &self.arena,
            Home::Offloaded => {
                self.offloaded.as_ref().expect("`take_offloaded` comes before offloaded buffers")
            }
            Home::Rank(rank) => {
                let of = self.others.get(usize::from(rank)).and_then(Option::as_ref);
                of.expect("`join` comes before other ranks' buffers")
            }
        };
        let end = buf.offset() + buf.len() as u64 * T::DTYPE.bytes();
        assert!(end <= memory.len() as u64, "a buffer that ends at {end} in a mapping of {}", memory.len());
        // SAFETY: the offset is inside the mapping by the assertion above.
        let ptr: *mut T = unsafe { memory.base().add(buf.offset() as usize).cast() };
        assert!(ptr.is_aligned(), "a buffer of {} at offset {}", T::DTYPE.name(), buf.offset());
        ptr
    }
}
