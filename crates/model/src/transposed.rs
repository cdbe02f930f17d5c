//! Matrices of experts that files hold with inputs as rows: [E, K, N] there, and [E N, K] as a parameter.
//!
//! Neighbours in one are apart in the other, so that each way goes through a buffer of the caller, piece by piece.

/// Sizes of a transposed tensor of all experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transposed {
    /// E.
    experts: usize,
    /// N: rows of an expert's matrix.
    n: usize,
    /// K: its columns.
    k: usize,
}

impl Transposed {
    /// Returns the sizes of a tensor of a shape in files.
    pub(crate) fn of(shape: &[u64]) -> Transposed {
        let &[experts, k, n] = shape else { panic!("{shape:?}: three axes") };
        Transposed { experts: experts as usize, n: n as usize, k: k as usize }
    }

    /// Returns the number of rows in files, and the elements of each.
    pub(crate) fn stored(&self) -> (usize, usize) {
        (self.experts * self.k, self.n)
    }

    /// Fills rows of the parameter from `first` on. `read` fills neighbours of the file from an element on.
    pub(crate) fn read<E>(
        &self,
        first: usize,
        rows: &mut [f32],
        mut read: impl FnMut(u64, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut column = vec![0.0; self.n.min(rows.len() / self.k)];
        self.each_run(first, rows.len() / self.k, |start, count, element| {
            for col in 0..self.k {
                let column = &mut column[..count];
                read(element + (col * self.n) as u64, column)?;
                for (row, x) in column.iter().enumerate() {
                    rows[(start + row) * self.k + col] = *x;
                }
            }
            Ok(())
        })
    }

    /// Gives rows of the parameter from `first` on to `write`, as neighbours of the file from an element on.
    pub(crate) fn write<E>(
        &self,
        first: usize,
        rows: &[f32],
        mut write: impl FnMut(u64, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut column = vec![0.0; self.n.min(rows.len() / self.k)];
        self.each_run(first, rows.len() / self.k, |start, count, element| {
            for col in 0..self.k {
                let column = &mut column[..count];
                for (row, x) in column.iter_mut().enumerate() {
                    *x = rows[(start + row) * self.k + col];
                }
                write(element + (col * self.n) as u64, column)?;
            }
            Ok(())
        })
    }

    /// Calls `each` with runs of `count` rows from `first` on that are of one expert: the number of rows before the
    /// run, its rows, and the element of the file with its first number.
    fn each_run<E>(
        &self,
        first: usize,
        count: usize,
        mut each: impl FnMut(usize, usize, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut row = first;
        while row < first + count {
            let (expert, within) = (row / self.n, row % self.n);
            let here = (self.n - within).min(first + count - row);
            each(row - first, here, (expert * self.k * self.n + within) as u64)?;
            row += here;
        }
        Ok(())
    }

    /// Fills whole rows of the file from `first` on. `read` fills rows of the parameter from one on, in `through`.
    pub(crate) fn stored_rows(
        &self,
        first: usize,
        stored: &mut [f32],
        through: &mut [f32],
        mut read: impl FnMut(usize, &mut [f32]),
    ) {
        let at_once = through.len() / self.k;
        assert!(at_once > 0, "{} values for rows of {}", through.len(), self.k);
        let (mut at, mut left) = (first, stored);
        while !left.is_empty() {
            // Columns from `col` on of one expert.
            let (expert, col) = (at / self.k, at % self.k);
            let columns = (self.k - col).min(left.len() / self.n);
            let (here, rest) = left.split_at_mut(columns * self.n);
            for start in (0..self.n).step_by(at_once) {
                let rows = &mut through[..at_once.min(self.n - start) * self.k];
                read(expert * self.n + start, rows);
                for (row, x) in rows.chunks_exact(self.k).enumerate() {
                    for (column, x) in x[col..col + columns].iter().enumerate() {
                        here[column * self.n + start + row] = *x;
                    }
                }
            }
            (at, left) = (at + columns, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_through_pieces_of_any_size_is_the_transpose() {
        let of = Transposed { experts: 3, n: 4, k: 5 };
        let file: Vec<f32> = (0..60).map(|i| i as f32).collect();
        let at = |row: usize, col: usize| file[(row / 4 * 5 + col) * 4 + row % 4];
        let rows: Vec<f32> = (0..12).flat_map(|row| (0..5).map(move |col| at(row, col))).collect();
        for size in 1..=12 {
            let (mut read, mut written) = (vec![0.0; 60], vec![0.0; 60]);
            for first in (0..12).step_by(size) {
                let part = first * 5..(first + size).min(12) * 5;
                let fill = |from: u64, to: &mut [f32]| {
                    to.copy_from_slice(&file[from as usize..][..to.len()]);
                    Ok::<(), ()>(())
                };
                of.read(first, &mut read[part.clone()], fill).unwrap();
                let put = |to: u64, from: &[f32]| {
                    written[to as usize..][..from.len()].copy_from_slice(from);
                    Ok::<(), ()>(())
                };
                of.write(first, &rows[part], put).unwrap();
            }
            assert_eq!((&read, &written), (&rows, &file), "{size}");
            for through in [5, 10, 20] {
                let mut stored = vec![0.0; 60];
                for first in (0..15).step_by(size) {
                    let part = first * 4..(first + size).min(15) * 4;
                    of.stored_rows(first, &mut stored[part], &mut vec![0.0; through], |row, to| {
                        to.copy_from_slice(&rows[row * 5..][..to.len()]);
                    });
                }
                assert_eq!(stored, file, "{size} {through}");
            }
        }
    }
}
