//! A row-major result, of which several threads write sixteen columns each.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// Columns that are written together: the rows of a tile.
pub const TILE: usize = 16;

/// All of the result.
pub(crate) struct Columns<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    taken: Vec<AtomicBool>,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: columns are written through `Column` only, of which there is one for each sixteen of them (see `take`), and the slice
// stays borrowed as long as any of them lives.
#[expect(unsafe_code, reason = "threads write disjoint columns of one slice")]
unsafe impl Sync for Columns<'_> {}

/// Sixteen columns, or what is left of them at the end, for one writer.
pub(crate) struct Column<'a> {
    all: &'a Columns<'a>,
    first: usize,
}

impl<'a> Columns<'a> {
    /// # Panics
    /// When `out` has not exactly so many numbers.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, width: usize) -> Self {
        assert!(rows.checked_mul(width) == Some(out.len()), "a place for each result");
        let taken = (0..width.div_ceil(TILE)).map(|_| AtomicBool::new(false)).collect();
        Self { start: out.as_mut_ptr(), rows, width, taken, borrowed: PhantomData }
    }

    /// Takes sixteen columns.
    ///
    /// # Panics
    /// When they were taken before, or there are none such.
    pub(crate) fn take(&self, index: usize) -> Column<'_> {
        assert!(!self.taken[index].swap(true, Ordering::Relaxed), "each piece of work is done once");
        Column { all: self, first: index * TILE }
    }
}

impl Column<'_> {
    /// Writes a row of them.
    pub(crate) fn put(&mut self, row: usize, numbers: &[f32; TILE]) {
        assert!(row < self.all.rows, "a row of the result");
        let count = TILE.min(self.all.width - self.first);
        // SAFETY: row and columns lie within the slice, and these columns were taken by nobody else.
        #[expect(unsafe_code, reason = "threads write disjoint columns of one slice")]
        unsafe {
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), self.all.start.add(row * self.all.width + self.first), count);
        }
    }
}
