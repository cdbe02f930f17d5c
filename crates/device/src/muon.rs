//! The numbers of Muon's operations. Its products are those of the forward pass.

/// How `momentum` turns a gradient into the matrix to orthogonalise.
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    /// 1 - momentum: the share of the new gradient.
    pub rest: f32,
    /// True if the new momentum is mixed with the gradient once more.
    pub nesterov: bool,
    /// Gradients are multiplied by it first (clipping).
    pub grad_scale: f32,
}

/// How `descend` changes weights.
#[derive(Clone, Copy, Debug)]
pub struct Descent {
    /// 1 - lr decay.
    pub keep: f32,
    pub rate: f32,
}

/// The elements that `arrange` copies: dst[to + i][j] = src[from + i][j], or src[from + j][i] if `turned`, for all
/// i below `rows` and all columns j of dst.
#[derive(Clone, Copy, Debug)]
pub struct Arrange {
    pub from: usize,
    pub to: usize,
    pub rows: usize,
    pub turned: bool,
}

impl Arrange {
    /// All of a matrix of `rows` rows.
    pub fn whole(rows: usize, turned: bool) -> Arrange {
        Arrange { from: 0, to: 0, rows, turned }
    }

    /// Requires that both matrices, [rows, columns], have what is copied.
    pub fn check(self, src: [usize; 2], dst: [usize; 2]) {
        let Arrange { from, to, rows, turned } = self;
        let [wanted, cols] = if turned { [dst[1], rows] } else { [rows, dst[1]] };
        assert!(to + rows <= dst[0], "rows {to}+{rows} of {}", dst[0]);
        assert!(from + wanted <= src[0], "rows {from}+{wanted} of {}", src[0]);
        assert_eq!(src[1], cols, "columns of what is arranged");
    }
}
