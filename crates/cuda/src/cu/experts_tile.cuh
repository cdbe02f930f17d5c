// Products of tensor cores from panels in shared memory: operands arrive by asynchronous copies, from any rows.
//
// A panel has rows of 64 elements (128 bytes), whose 16-byte pieces are permuted by the row, so that eight rows of a
// piece hit different banks. An operand "by line" is one panel of its lines by 64 depths; "by depth" it is panels of 64
// depths by 64 columns, 8,192 bytes each. A sum is one chain of steps of 16 depths, ascending, none beyond the last
// depth: its bits depend on its own line and column alone, never on the tile.

#define DEPTH 64
#define PANEL_BYTES (DEPTH * 128)

/// Offset of a piece of eight elements in a panel's row.
__device__ __forceinline__ u32 piece_at(u32 row, u32 piece) { return row * 128 + (piece ^ row % 8) * 16; }

/// Starts copying a piece, of which `left` elements are there; zeros after them.
__device__ __forceinline__ void copy_piece(u8* to, const bf16* from, u32 left, bool wide) {
    if (wide) {
        copy_async_16(to, from, left > 0);
        return;
    }
    const bf16 zero = {0};
    for (u32 e = 0; e < 8; e++) ((bf16*)to)[e] = e < left ? from[e] : zero;
}

/// LINES lines of an operand by line, `length` elements each: a thread has the same piece of several lines. WIDE: the
/// host knows that rows are aligned.
template <u32 LINES, u32 THREADS, bool WIDE = false> struct Lines {
    static constexpr u32 EACH = LINES * 8 / THREADS;
    const bf16* from[EACH];
    u32 there, length;
    bool wide;

    /// Line i of the tile is row `row(i)` of x; there are `lines` of them.
    template <class Row>
    __device__ __forceinline__ Lines(const bf16* x, u32 length, u32 lines, const Row& row) : Lines(x, length, lines, row, length) {}
    /// The same, of columns of wider rows: `stride` elements from row to row.
    template <class Row>
    __device__ __forceinline__ Lines(const bf16* x, u32 length, u32 lines, const Row& row, u32 stride) : there(0), length(length) {
        wide = WIDE || is_wide(x, length, 2);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 line = threadIdx.x / 8 + i * (THREADS / 8);
            const bool here = line < lines;
            from[i] = x + (here ? (u64)row(line) * stride : 0);
            there |= (u32)here << i;
        }
    }
    __device__ __forceinline__ void fill(u8* panel, u32 depth) const {
        const u32 at = depth + threadIdx.x % 8 * 8, left = at < length ? length - at : 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 line = threadIdx.x / 8 + i * (THREADS / 8), own = there >> i & 1 ? left : 0;
            // Reads nothing for a missing piece, wherever it would be.
            copy_piece(panel + piece_at(line, threadIdx.x % 8), WIDE || own ? from[i] + at : from[i], own, wide);
        }
    }
};

/// 64 depths of COLS columns from `first` on, of an operand by depth whose rows have `width` elements, `stride` apart.
template <u32 COLS, u32 THREADS, bool WIDE = false> struct Depths {
    static constexpr u32 EACH = DEPTH * 8 / THREADS;
    const bf16* x;
    u32 width, stride, first;
    bool wide;

    __device__ __forceinline__ Depths(const bf16* x, u32 width, u32 first) : Depths(x, width, first, width) {}
    __device__ __forceinline__ Depths(const bf16* x, u32 width, u32 first, u32 stride)
        : x(x), width(width), stride(stride), first(first), wide(WIDE || is_wide(x, width, 2)) {}
    /// Row `depth` of x, and so on, are the depths of the panels, where it is below `length`.
    __device__ __forceinline__ void fill(u8* panels, u32 depth, u32 length) const {
        u32 rows[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) rows[i] = depth + threadIdx.x / 8 + i * (THREADS / 8);
        fill(panels, rows, length - depth);
    }
    /// Row `rows[i]` of x is depth threadIdx.x / 8 + i THREADS / 8 of the panels, where it is below `depths`.
    __device__ __forceinline__ void fill(u8* panels, const u32 (&rows)[EACH], u32 depths) const {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 depth = threadIdx.x / 8 + i * (THREADS / 8);
            const bf16* row = x + (u64)rows[i] * stride;
#pragma unroll
            for (u32 panel = 0; panel < COLS / 64; panel++) {
                const u32 col = first + panel * 64 + threadIdx.x % 8 * 8;
                const u32 left = depth < depths && col < width ? width - col : 0;
                const bf16* from = WIDE || left ? row + col : x;
                copy_piece(panels + panel * PANEL_BYTES + piece_at(depth, threadIdx.x % 8), from, left, wide);
            }
        }
    }
};

/// 16 lines from `line` and 16 depths from `d`, as four 8 x 8 matrices. DEPTH_SECOND: the second matrix is the next
/// eight depths (operand b), else the next eight lines (operand a).
template <bool BY_LINE, bool DEPTH_SECOND> __device__ __forceinline__ void fragment(u32 (&r)[4], const u8* tile, u32 line, u32 d) {
    const u32 lane = threadIdx.x % WARP, second = lane / 8 % 2, third = lane / 16;
    const u32 lines = DEPTH_SECOND ? third : second, depths = DEPTH_SECOND ? second : third;
    if (BY_LINE) {
        ldmatrix_x4(r, tile + (line + lines * 8 + lane % 8) * 128 + ((d / 8 + depths) ^ lane % 8) * 16);
    } else {
        const u8* panel = tile + line / 64 * PANEL_BYTES + (d + depths * 8 + lane % 8) * 128;
        ldmatrix_x4_trans(r, panel + ((line % 64 / 8 + lines) ^ lane % 8) * 16);
    }
}

/// A block's tile, ROWS x COLS: each of WARP_ROWS x WARP_COLS warps has every WARP_ROWS-th 16 rows, so that a tile with
/// few rows keeps all busy, and COLS / WARP_COLS columns.
template <u32 ROWS_, u32 COLS_, u32 WARP_ROWS_, u32 WARP_COLS_, u32 STAGES_> struct Shape {
    static constexpr u32 ROWS = ROWS_, COLS = COLS_, WARP_ROWS = WARP_ROWS_, WARP_COLS = WARP_COLS_, STAGES = STAGES_;
    static constexpr u32 THREADS = WARP_ROWS * WARP_COLS * WARP, ROW_FRAGMENTS = ROWS / WARP_ROWS / 16;
    static constexpr u32 OWN_COLS = COLS / WARP_COLS, STAGE_BYTES = (ROWS + COLS) * 128;
};

template <class S> struct Sums {
    float of[S::ROW_FRAGMENTS][S::OWN_COLS / 8][4];

    static __device__ __forceinline__ u32 row(u32 fragment) { return (fragment * S::WARP_ROWS + threadIdx.x / WARP / S::WARP_COLS) * 16; }
    static __device__ __forceinline__ u32 col() { return threadIdx.x / WARP % S::WARP_COLS * S::OWN_COLS; }

    /// Adds a stage's product: `steps` of 16 depths, of the first `rows` rows.
    template <bool A_BY_LINE, bool B_BY_LINE> __device__ __forceinline__ void add(const u8* stage, u32 steps, u32 rows) {
        if (steps == DEPTH / 16) {
#pragma unroll
            for (u32 step = 0; step < DEPTH / 16; step++) add_step<A_BY_LINE, B_BY_LINE>(stage, step, rows);
        } else {
#pragma unroll 1
            for (u32 step = 0; step < steps; step++) add_step<A_BY_LINE, B_BY_LINE>(stage, step, rows);
        }
    }
    /// True if 16 rows are among the first `rows`. A tile of 16 has one.
    static __device__ __forceinline__ bool is_inside(u32 fragment, u32 rows) { return S::ROWS == 16 || row(fragment) < rows; }

    template <bool A_BY_LINE, bool B_BY_LINE> __device__ __forceinline__ void add_step(const u8* stage, u32 step, u32 rows) {
        const u8* right = stage + S::ROWS * 128;
        u32 a[S::ROW_FRAGMENTS][4], b[S::OWN_COLS / 16][4];
#pragma unroll
        for (u32 r = 0; r < S::ROW_FRAGMENTS; r++) {
            if (is_inside(r, rows)) fragment<A_BY_LINE, false>(a[r], stage, row(r), step * 16);
        }
#pragma unroll
        for (u32 c = 0; c < S::OWN_COLS / 16; c++) fragment<B_BY_LINE, true>(b[c], right, col() + c * 16, step * 16);
#pragma unroll
        for (u32 r = 0; r < S::ROW_FRAGMENTS; r++) {
            if (!is_inside(r, rows)) continue;
#pragma unroll
            for (u32 c = 0; c < S::OWN_COLS / 8; c++) {
                const u32 two[2] = {b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]};
                mma_bf16(of[r][c], a[r], two);
            }
        }
    }
    /// Gives `put` each two neighbours of the first `rows` rows: their row, their first column and the sums.
    template <class Put> __device__ __forceinline__ void each(u32 rows, const Put& put) const {
        const u32 lane = threadIdx.x % WARP;
#pragma unroll
        for (u32 r = 0; r < S::ROW_FRAGMENTS; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 line = row(r) + half * 8 + lane / 4;
                if (line >= rows) continue;
#pragma unroll
                for (u32 c = 0; c < S::OWN_COLS / 8; c++) {
                    put(line, col() + c * 8 + lane % 4 * 2, of[r][c][half * 2], of[r][c][half * 2 + 1]);
                }
            }
    }
};

/// Runs steps of 64 depths through STAGES buffers: `load(stage, depth)` starts copies, `use(stage, depth)` multiplies.
template <u32 STAGES, u32 STAGE_BYTES, class Load, class Use>
__device__ __forceinline__ void run_stages(u8* shared, u32 length, const Load& load, const Use& use) {
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (stage * DEPTH < length) load(shared + stage * STAGE_BYTES, stage * DEPTH);
        copy_async_commit();
    }
    u32 stage = 0;
    for (u32 depth = 0; depth < length; depth += DEPTH) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        // Fills the stage that all have just left.
        const u32 ahead = depth + (STAGES - 1) * DEPTH, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (ahead < length) load(shared + free * STAGE_BYTES, ahead);
        copy_async_commit();
        use(shared + stage * STAGE_BYTES, depth);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
}

/// Steps of 16 depths from `depth` on, of a stage at most.
__device__ __forceinline__ u32 steps_from(u32 depth, u32 length) {
    const u32 steps = tiles_of(length - depth, 16);
    return steps < DEPTH / 16 ? steps : DEPTH / 16;
}

/// Finds a thread's rows of a step: those of pairs first + threadIdx.x / 8 + i THREADS / 8, below `end`.
template <u32 THREADS, u32 EACH>
__device__ __forceinline__ void find_rows(u32 (&rows)[EACH], const u32* pairs, u32 first, u32 end, u32 chosen) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 place = first + threadIdx.x / 8 + i * (THREADS / 8);
        rows[i] = place < end ? row_of(pairs, place, chosen) : 0;
    }
}

/// Adds lines of x times the transpose of weights [J, L], or BACKWARD times weights [L, J], to sums of `rows` lines and
/// the outputs from `first` on.
template <bool BACKWARD, class S, bool WIDE>
__device__ __forceinline__ void multiply(u8* shared, const Lines<S::ROWS, S::THREADS, WIDE>& left, const bf16* w, u32 rows, u32 first,
                                         u32 J, u32 L, Sums<S>& sums) {
    // Weights are copied first: rows of x are known when their pairs have been read.
    const auto use = [&](const u8* stage, u32 depth) { sums.template add<true, !BACKWARD>(stage, steps_from(depth, L), rows); };
    if constexpr (BACKWARD) {
        const Depths<S::COLS, S::THREADS, WIDE> right(w, J, first);
        const auto load = [&](u8* stage, u32 depth) {
            right.fill(stage + S::ROWS * 128, depth, L);
            left.fill(stage, depth);
        };
        run_stages<S::STAGES, S::STAGE_BYTES>(shared, L, load, use);
    } else {
        const Lines<S::COLS, S::THREADS, WIDE> right(w, L, J - first, [&](u32 line) { return first + line; });
        const auto load = [&](u8* stage, u32 depth) {
            right.fill(stage + S::ROWS * 128, depth);
            left.fill(stage, depth);
        };
        run_stages<S::STAGES, S::STAGE_BYTES>(shared, L, load, use);
    }
}
