//! The shapes of AMX's tile registers, which belong to a tile of outputs: they are set where its first product needs
//! them and released with it. So nothing relies on what other code in the process left there.

use plimsoll_device::PANEL;
use std::arch::asm;
use std::marker::PhantomData;

/// Bytes of a row of a register.
pub(super) const ROW_BYTES: usize = 64;

/// The shapes of the eight tile registers: 0 to 5 are sums, 6 is A, 7 is B. While it lives, the thread's registers are
/// in use; afterwards a switch of threads need not store them.
#[derive(Default)]
pub(super) struct Shapes {
    /// Rows of A and of the sums; 0 before the first shapes.
    rows: usize,
    /// The registers are this thread's.
    here: PhantomData<*const ()>,
}

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Gives A and the sums `rows` rows.
    ///
    /// # Safety
    /// The machine has the path.
    #[inline]
    pub(super) unsafe fn set(&mut self, rows: usize) {
        if self.rows == rows {
            return;
        }
        assert!((1..=PANEL).contains(&rows), "{rows} rows of a tile");
        let (all, few) = (PANEL as u8, rows as u8);
        let mut of = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [few, few, few, few, few, few, few, all, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        of.row_bytes[..8].fill(ROW_BYTES as u16);
        // SAFETY: the caller promises the instruction; it reads 64 bytes that describe eight registers.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const of, options(nostack, readonly)) };
        self.rows = rows;
    }
}

impl Drop for Shapes {
    fn drop(&mut self) {
        if self.rows > 0 {
            // SAFETY: the machine has the path, as `set` ran.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}
