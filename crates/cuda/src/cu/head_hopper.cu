// Statistics of logits, and their gradients, straight from the product by Hopper's own instructions: the logits stay in
// registers. A row's part is the 256 columns of a tile here; its statistics are a function of its logits alone, summed
// by the four lanes that hold the row, in order.
//
// A block takes 128 rows and 256 columns of the vocabulary at a time. One thread of its first four warps copies both
// operands, 64 elements of K a step, through STAGES buffers (the copy engine writes rows of 128 bytes in the swizzled
// order that the product reads); the eight other warps multiply, 64 rows four, and reduce the sums. On other cards the
// file is empty, and `head.cu` does the same from logits in memory.

#define BLOCK_M 128
#define BLOCK_N 256
#define BLOCK_K 64
#define STAGES 4
/// Bytes of a stage: rows, then columns.
#define ROWS_BYTES (BLOCK_M * BLOCK_K * 2)
#define STAGE_BYTES (ROWS_BYTES + BLOCK_N * BLOCK_K * 2)

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Gradients of a thread's logits of one row, in pairs, as `gradients` in `head.cu` computes them: `HALF` 0 has row
/// lane / 4 of the warp's, 1 is eight rows further. `first`: the tile's first column in the vocabulary.
template <int HALF>
__device__ __forceinline__ void row_gradients(u32 (&packed)[32], const float (&sums)[128], const GradientRows& rows, u32 row,
                                              u32 num_rows, u32 first, float inv_t) {
    const bool here = row < num_rows;
    const float dlogp = here ? inv_t * rows.dlogprobs[row] : 0.0f, minus_dh = here ? -inv_t * rows.dentropy[row] : 0.0f;
    const float mass = here ? rows.mass(row, inv_t) : 0.0f;
    const float shift = here ? rows.lse[row] * -1.44269504f : 0.0f, scale = inv_t * 1.44269504f;
    const u32 target = here ? rows.targets[row] - first : BLOCK_N;
    if (dlogp == 0.0f && minus_dh == 0.0f && mass == 0.0f) {
        // Without a gradient from the loss there is none here, whatever the row holds.
#pragma unroll
        for (u32 j = 0; j < 32; j++) packed[j] = 0;
    } else if (minus_dh == 0.0f && target >= BLOCK_N) {
#pragma unroll
        for (u32 j = 0; j < 32; j++) {
            const float low = exp2_fast(fma(sums[4 * j + 2 * HALF], scale, shift));
            const float high = exp2_fast(fma(sums[4 * j + 2 * HALF + 1], scale, shift));
            packed[j] = pack_bf16(low * mass, high * mass);
        }
    } else {
        const float entropy = rows.entropy[row];
        const u32 mine = target - threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 j = 0; j < 32; j++) {
            float y[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float log2_p = fma(sums[4 * j + 2 * HALF + i], scale, shift);
                // ln p is clamped where p counts as 0, because -infinity times 0 would be NaN.
                const float ln_p = fmaxf(log2_p * 0.69314718f, -87.3f);
                y[i] = exp2_fast(log2_p) * fma(minus_dh, ln_p + entropy, mass);
                if (mine == 8 * j + i) y[i] = y[i] + dlogp;
            }
            packed[j] = pack_bf16(y[0], y[1]);
        }
    }
}

/// Stores one row's gradients, 16 bytes a thread at a time. All lanes call it.
__device__ __forceinline__ void put_row(const u32 (&packed)[32], bf16* to, bool here, u32 cols) {
#pragma unroll
    for (u32 j = 0; j < 32; j += 4) {
        u32 x[4] = {packed[j], packed[j + 1], packed[j + 2], packed[j + 3]};
        transpose4(x);
        const u32 column = (j + threadIdx.x % 4) * 8;
        if (here && column < cols) *(uint4*)(to + column) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/// The logit of a token without probability, after its factor.
#define NO_MASS -1e30f
/// Element `i` of a thread's 64 of a row, and its column in the tile.
#define OF_ROW(sums, i) (sums)[(i) / 2 * 4 + 2 * HALF + (i) % 2]
#define COLUMN_OF(i) ((i) / 2 * 8 + threadIdx.x % 4 * 2 + (i) % 2)

/// Tokens `first..end`, which have no probability.
struct Suppressed {
    u32 first, end;

    /// Gives their logits in a tile that begins at token `column` a value: few tiles have any.
    template <int HALF> __device__ __forceinline__ void apply(float (&sums)[128], u32 column, float to) const {
        if (end <= column || first >= column + BLOCK_N) return;
#pragma unroll
        for (u32 i = 0; i < 64; i++)
            if (column + COLUMN_OF(i) - first < end - first) OF_ROW(sums, i) = to;
    }
};

/// Adds a row's biases to a tile that begins at token `column`, and gives the logits that its mask leaves out a value.
template <int HALF>
__device__ __forceinline__ void apply_own(const RowsOwn& own, float (&sums)[128], u32 row, u32 column, u32 vocab, float to) {
    if (own.per_row > 0) {
        const u64 end = (u64)(row + 1) * own.per_row;
        for (u64 at = own.bias_from(row, column); at < end; at++) {
            const u32 mine = own.ids[at] - column;
            if (mine >= BLOCK_N || own.ids[at] >= vocab) break;
            const float value = own.values[at];
#pragma unroll
            for (u32 i = 0; i < 64; i++)
                if (COLUMN_OF(i) == mine) OF_ROW(sums, i) = OF_ROW(sums, i) + value;
        }
    }
    const u32 mask = own.masks != 0 ? own.of_row[row] : NO_MASK;
    if (mask == NO_MASK) return;
    const u32* words = own.masks + (u64)mask * own.words;
#pragma unroll
    for (u32 w = 0; w < BLOCK_N / 32; w++) {
        const u32 at = column / 32 + w, bits = at < own.words ? words[at] : 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (!(bits >> (i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2) & 1)) OF_ROW(sums, w * 8 + i) = to;
    }
}

/// The work of a block of the kernel.
struct Work {
    u32 rows, cols, steps; // of K
    /// Rows of a box of x: what follows those of few rows is taken for rows that are not read.
    __device__ __forceinline__ u32 box() const { return rows < BLOCK_M ? (rows + 7) / 8 * 8 : BLOCK_M; }
    __device__ __forceinline__ u32 row_tiles() const { return (rows + BLOCK_M - 1) / BLOCK_M; }
    __device__ __forceinline__ u32 tiles() const { return row_tiles() * ((cols + BLOCK_N - 1) / BLOCK_N); }
};

/// Copies both operands, step by step.
__device__ __forceinline__ void produce(const Work& work, const TensorMap* x_map, const TensorMap* w_map, u32 first,
                                        u32 stages, u32 full, u32 empty) {
    u32 stage = 0, parity = 1; // the buffers are empty
    for (u32 tile = blockIdx.x; tile < work.tiles(); tile += gridDim.x) {
        const u32 row = tile % work.row_tiles() * BLOCK_M, column = first + tile / work.row_tiles() * BLOCK_N;
        for (u32 step = 0; step < work.steps; step++) {
            barrier_wait(empty + stage * 8, parity);
            barrier_expect(full + stage * 8, STAGE_BYTES - (BLOCK_M - work.box()) * BLOCK_K * 2);
            const u32 to = stages + stage * STAGE_BYTES;
            copy_box(to, x_map, step * BLOCK_K, row, full + stage * 8);
            copy_box(to + ROWS_BYTES, w_map, step * BLOCK_K, column, full + stage * 8);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}

/// Four warps: 64 rows of every tile, which `make` takes: a thread's sums, the first of its two rows (the other is
/// eight further), the tile's first column and its number among the columns' tiles.
template <class Make>
__device__ __forceinline__ void consume(const Work& work, u32 group, u32 stages, u32 full, u32 empty, const Make& make) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x % 128 / WARP;
    u32 stage = 0, parity = 0;
    float sums[128];
    for (u32 tile = blockIdx.x; tile < work.tiles(); tile += gridDim.x) {
        u32 before = 0;
        for (u32 step = 0; step < work.steps; step++) {
            barrier_wait(full + stage * 8, parity);
            const u32 a = stages + stage * STAGE_BYTES + group * 64 * BLOCK_K * 2;
            const u32 b = stages + stage * STAGE_BYTES + ROWS_BYTES;
            hold(sums);
            begin_products();
#pragma unroll
            for (u32 k = 0; k < BLOCK_K / 16; k++)
                multiply(sums, operand(a + k * 32), operand(b + k * 32), step + k > 0);
            end_products();
            // The step before has ended when only this one is under way.
            wait_products<1>();
            if (step > 0 && lane == 0) barrier_arrive(empty + before * 8);
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        wait_products<0>();
        hold(sums);
        if (lane == 0) barrier_arrive(empty + before * 8);
        const u32 row = tile % work.row_tiles() * BLOCK_M + group * 64 + warp * 16 + lane / 4;
        make(sums, row, tile / work.row_tiles());
    }
}

/// Makes the barriers, and gives each warp its role.
template <class Make>
__device__ __forceinline__ void run(const Work& work, const TensorMap* x_map, const TensorMap* w_map, u32 first,
                                    const Make& make) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    __shared__ u64 barriers[2 * STAGES];
    const u32 stages = (shared_address(dynamic_shared) + 1023) / 1024 * 1024;
    const u32 full = shared_address(barriers), empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(empty + i * 8, 8); // a lane of each multiplying warp
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const u32 group = own_warp() / 4;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) produce(work, x_map, w_map, first, stages, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(work, group - 1, stages, full, empty, make);
    }
}

// ---- parts ----------------------------------------------------------------------------------------------------------

/// The maximum over the four lanes of a row.
__device__ __forceinline__ float four_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ __forceinline__ float four_sum(float x) {
    x = x + __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/// e^x for x of 0 at most.
__device__ __forceinline__ float mass_of(float x) { return exp2_fast(x * 1.44269504f); }

enum Pick { TARGET, LARGEST, DRAW };

/// The statistics of a part; sums become scaled logits. `target`: in the tile or beyond; `uniform()`: the row's number.
template <int HALF, Pick PICK, class Uniform>
__device__ __forceinline__ PartStats part_stats(float (&sums)[128], float inv_t, u32 width, u32 target,
                                                const Uniform& uniform) {
    PartStats part = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f, 0};
#pragma unroll
    for (u32 i = 0; i < 64; i++) {
        float& x = OF_ROW(sums, i);
        x = COLUMN_OF(i) < width ? x * inv_t : MINUS_INFINITY;
        part.max = fmaxf(part.max, x);
    }
    part.max = four_max(part.max);
    float mass[2] = {}, weighted[2] = {};
#pragma unroll
    for (u32 i = 0; i < 64; i++) {
        const float d = OF_ROW(sums, i) - part.max, y = mass_of(d);
        mass[i % 2] = mass[i % 2] + y;
        // The comparison is false for NaN, which thus reaches the sums.
        weighted[i % 2] = fma(d < EXP_MIN ? EXP_MIN : d, y, weighted[i % 2]);
    }
    const float mine = mass[0] + mass[1];
    part.sum = four_sum(mine);
    part.weighted = four_sum(weighted[0] + weighted[1]);
    if (PICK == TARGET) {
        if (__any_sync(ALL_LANES, target < BLOCK_N)) {
#pragma unroll
            for (u32 i = 0; i < 64; i++)
                if (COLUMN_OF(i) == target) part.logit = OF_ROW(sums, i);
            part.logit = four_sum(part.logit);
        }
    } else if (PICK == LARGEST) {
        u32 lowest = BLOCK_N;
#pragma unroll
        for (u32 i = 64; i-- > 0;)
            if (OF_ROW(sums, i) == part.max) lowest = COLUMN_OF(i);
        lowest = min(lowest, __shfl_xor_sync(ALL_LANES, lowest, 1));
        part.token = min(lowest, __shfl_xor_sync(ALL_LANES, lowest, 2));
        part.logit = part.max;
    } else {
        // The token at which the running sum of masses passes `uniform` times the whole, lane by lane.
        const u32 lane = threadIdx.x % WARP, four = lane & ~3u;
        double before = 0.0, total = 0.0, rest = 0.0;
        float masses[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) total += (double)(masses[i] = __shfl_sync(ALL_LANES, mine, four + i));
        const double wanted = uniform() * total;
        u32 owner = 0;
        bool passed = false;
        // Rounding may leave `wanted` at the very end: then the last that has a mass is it. So below.
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (!passed && masses[i] > 0.0f) owner = i, rest = wanted - before;
            before += (double)masses[i];
            passed = passed || before > wanted;
        }
        if (lane == four + owner) {
            const float upto = (float)rest;
            float sum = 0.0f;
            bool found = false;
#pragma unroll
            for (u32 i = 0; i < 64; i++) {
                const float x = OF_ROW(sums, i), y = mass_of(x - part.max);
                if (!found && y > 0.0f) part.token = COLUMN_OF(i), part.logit = x;
                sum = sum + y;
                found = found || sum > upto;
            }
        }
        part.token = __shfl_sync(ALL_LANES, part.token, four + owner);
        part.logit = __shfl_sync(ALL_LANES, part.logit, four + owner);
    }
    return part;
}

/// Outputs and inputs of rows' parts.
struct Parts {
    u32 rows, vocab, parts;
    float inv_t;
    Suppressed suppressed;
    const u32 *targets, *keys;
    PartStats* stats; // [rows, parts]
    RowsOwn own;

    /// `OWN`: rows may have masks and biases; the sums of a row without are what they are without `OWN`.
    template <int HALF, Pick PICK, bool OWN>
    __device__ __forceinline__ void row(float (&sums)[128], u32 row, u32 tile) const {
        suppressed.apply<HALF>(sums, tile * BLOCK_N, NO_MASS / inv_t);
        if (OWN && row < rows) apply_own<HALF>(own, sums, row, tile * BLOCK_N, vocab, NO_MASS / inv_t);
        const u32 first = tile * BLOCK_N, target = PICK == TARGET && row < rows ? targets[row] - first : BLOCK_N;
        auto uniform = [&] {
            const uint4 numbers = row < rows ? row_numbers(keys, row) : make_uint4(0, 0, 0, 0);
            return unit_f64(numbers.z, numbers.w);
        };
        PartStats part = part_stats<HALF, PICK>(sums, inv_t, vocab - first, target, uniform);
        part.token = PICK == TARGET ? 0 : first + part.token;
        if (row < rows && threadIdx.x % 4 == 0) stats[(u64)row * parts + tile] = part;
    }
};
#endif

/// stats: [rows, parts] of the logits x w^T of a vocabulary, in parts of 256 columns. `x_map`: [rows, K], `w_map`:
/// [V, K], boxes of 64 x 128, or fewer rows, and 64 x 256. Blocks take tiles in turn, as many as the card runs at once.
/// The kernels named `_own` take masks and biases of single rows.
#define HEAD_PARTS(NAME, PICK)                                                                                           \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                 \
        head_parts_of_##NAME(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,           \
                             u32 num_rows, u32 vocab, u32 steps, float inv_t, u32 suppressed, u32 suppressed_end,        \
                             const u32* targets, const u32* keys, PartStats* stats) {                                    \
        begin();                                                                                                         \
        ON_HOPPER(const Work work = {num_rows, vocab, steps}; const Parts parts = {                                      \
                      num_rows, vocab, (vocab + BLOCK_N - 1) / BLOCK_N, inv_t, {suppressed, suppressed_end},             \
                      targets, keys, stats, {}};                                                                         \
                  run(work, &x_map, &w_map, 0, [&](float(&sums)[128], u32 row, u32 tile) {                               \
                      parts.row<0, PICK, false>(sums, row, tile);                                                        \
                      parts.row<1, PICK, false>(sums, row + 8, tile);                                                    \
                  });)                                                                                                   \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                 \
        head_parts_of_##NAME##_own(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,     \
                                   u32 num_rows, u32 vocab, u32 steps, float inv_t, u32 suppressed, u32 suppressed_end,  \
                                   const u32* targets, const u32* keys, PartStats* stats, const u32* masks,              \
                                   u32 words, const u32* of_row, const u32* ids, const float* values, u32 per_row) {     \
        begin();                                                                                                         \
        ON_HOPPER(const Work work = {num_rows, vocab, steps}; const Parts parts = {                                      \
                      num_rows, vocab, (vocab + BLOCK_N - 1) / BLOCK_N, inv_t, {suppressed, suppressed_end},             \
                      targets, keys, stats, {masks, words, of_row, ids, values, per_row}};                               \
                  run(work, &x_map, &w_map, 0, [&](float(&sums)[128], u32 row, u32 tile) {                               \
                      parts.row<0, PICK, true>(sums, row, tile);                                                         \
                      parts.row<1, PICK, true>(sums, row + 8, tile);                                                     \
                  });)                                                                                                   \
    }
HEAD_PARTS(targets, TARGET)
HEAD_PARTS(largest, LARGEST)
HEAD_PARTS(draws, DRAW)

// ---- gradients ------------------------------------------------------------------------------------------------------

/// Suppressed tokens get gradients as if they were not; `zero_columns` takes them away: tests for them, in registers, cost
/// this kernel more than that.
/// d: [rows, cols] bf16, gradients by logits of columns `first..first + cols`; cols % 8 == 0. The rest as above.
extern "C" __global__ void __launch_bounds__(384, 1)
    head_gradients(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, u32 num_rows, u32 cols,
                   u32 steps, u32 first, float inv_t, const u32* targets, const float* lse, const float* entropy,
                   const float* dlogprobs, const float* dentropy, const float* rest, const float* d_listed, bf16* d) {
    begin();
    ON_HOPPER(
        const Work work = {num_rows, cols, steps};
        const GradientRows rows = {targets, lse, entropy, dlogprobs, dentropy, rest, d_listed};
        run(work, &x_map, &w_map, first, [&](float(&sums)[128], u32 row, u32 tile) {
            const u32 column = tile * BLOCK_N;
            bf16* to = d + (u64)row * cols + column;
            u32 packed[32];
            row_gradients<0>(packed, sums, rows, row, num_rows, first + column, inv_t);
            put_row(packed, to, row < num_rows, cols - column);
            row_gradients<1>(packed, sums, rows, row + 8, num_rows, first + column, inv_t);
            put_row(packed, to + (u64)8 * cols, row + 8 < num_rows, cols - column);
        });)
}
