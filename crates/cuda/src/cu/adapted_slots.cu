// Linear layers of which each row has the adapter of its slot, or none: see adapted.cuh.
//
// Maps of A and B have the slot as third dimension. A tile's sums take W's steps and, for each slot among its rows, the
// steps of its B, in which rows of other slots are zeros. These add nothing, so that a row's sum is the chain of its own
// adapter alone. A tile of few rows and slots makes their u next to its own sums, as in `adapted_few.cu`. Else u comes
// first: a block has 64 rows and one slot, and stores the rows of that slot.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Which rows have which slot: `count` slots with a factor each.
struct SlotTable {
    const u32* of_row;
    const float* scales;
    u32 count;

    /// The slots of `n` rows from `row` on, as bits. All lanes of a warp call it.
    __device__ __forceinline__ u64 among(u32 row, u32 n, u32 rows) const {
        u32 low = 0, high = 0;
        for (u32 i = threadIdx.x % WARP; i < n && row + i < rows; i += WARP) {
            const u32 slot = of_row[row + i];
            if (slot >= count) continue;
            if (slot < 32) {
                low |= 1u << slot;
            } else {
                high |= 1u << (slot - 32);
            }
        }
        low = __reduce_or_sync(ALL_LANES, low);
        high = __reduce_or_sync(ALL_LANES, high);
        return (u64)high << 32 | low;
    }
    /// The slot of a row, or one that no mask has.
    __device__ __forceinline__ u32 at(u32 row, u32 rows) const { return row < rows ? of_row[row] : ~0u; }
};

/// Copies a box of a slot's matrix, as `copy_box` does.
__device__ __forceinline__ void copy_slot(u32 to, const TensorMap* map, u32 x, u32 y, u32 slot, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"((u64)map), "r"(x), "r"(y), "r"(slot), "r"(barrier) : "memory");
}

// ---- u --------------------------------------------------------------------------------------------------------------

/// u of 64 rows and up to 64 of its columns, for the rows of a slot. A buffer has two steps.
struct SlotsU {
    static constexpr u32 N = 64, STEP_BYTES = (64 + N) * 128;
    const Layer& of;
    const SlotTable& slots;

    __device__ __forceinline__ void run(const TensorMap* x, const TensorMap* a, u32 stages, bf16* u) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX];
        const u32 col = blockIdx.x * N, row = blockIdx.y * 64, slot = blockIdx.z, width = of.rank * of.blocks;
        if (!(slots.among(row, 64, of.rows) >> slot & 1)) return;
        Ring ring = ring_of(barriers, dynamic_shared, stages, 2 * STEP_BYTES, 4);
        if (own_warp() == 4) {
            if (threadIdx.x % WARP > 0) return;
            const u32 of_a = width < N ? width : N;
            for (u32 l = 0; l < of.steps * STEP; l += 2 * STEP) {
                ring.fill(2 * (64 + of_a) * 128);
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = l + half * STEP, to = ring.at() + half * STEP_BYTES;
                    copy_box(to, x, at, row, ring.full());
                    copy_slot(to + 64 * 128, a, at, col, slot, ring.full());
                }
                ring.next();
            }
            return;
        }
        float sums[N / 2];
        Reader reader = {0, false};
        for (u32 l = 0; l < of.steps * STEP; l += 2 * STEP) {
            barrier_wait(ring.full(), ring.parity);
            hold(sums);
            begin_products();
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 at = ring.at() + half * STEP_BYTES;
                multiply_step<false, 4, N>(sums, at, at + 64 * 128, reader.is_begun || half > 0);
            }
            reader.end_step(ring);
        }
        reader.end(ring);
        hold(sums);
        const u32 own = col + threadIdx.x % 4 * 2;
        const float scale = slots.scales[slot];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 r = row + own_row() + 8 * half;
            if (slots.at(r, of.rows) != slot) continue;
            bf16* to = u + (u64)r * width;
#pragma unroll
            for (u32 j = 0; j < N / 8; j++) {
                const u32 two = pack_bf16(scale * sums[4 * j + 2 * half], scale * sums[4 * j + 2 * half + 1]);
                if (own + j * 8 < width) *(u32*)(to + own + j * 8) = two;
            }
        }
    }
};

// ---- The layer's outputs --------------------------------------------------------------------------------------------

/// The maps of a launch.
struct SlotMaps {
    const TensorMap *x, *w, *b[3];
};

/// Columns of u that a tile makes next to its own sums.
#define FEW_U 64

/// A tile of 64 rows and N columns of one of the layer's blocks, which makes u of all slots among its rows: as many as
/// have room, each of a rank of whole steps of 16.
template <u32 N> struct FewSlots : OwnTile {
    /// Steps of a buffer.
    static constexpr u32 STEPS = N < 64 ? 2 : 1;
    const Layer& of;
    const SlotTable& slots;
    /// The slots among the rows, as bits, and their number.
    u64 own;
    u32 count, of_rows, step_bytes;

    __device__ __forceinline__ FewSlots(const Layer& of, const SlotTable& slots)
        : OwnTile(of, N),
          of(of),
          slots(slots),
          own(block < 3 ? slots.among(row, 64, of.rows) : 0),
          count(__popcll(own)),
          of_rows((of.rows < 64 ? (of.rows + 7) / 8 * 8 : 64) * 128),
          step_bytes(of_rows + (N + FEW_U) * 128) {}
    __device__ __forceinline__ u32 buffers() const { return tiles_of(of.steps, STEPS); }
    /// Bytes of a step that are copied: A has as many rows as its slots have.
    __device__ __forceinline__ u32 copied() const { return of_rows + (N + count * of.rank) * 128; }

    /// Copies W, A and B. What nothing writes is copied before preceding kernels have ended.
    __device__ __forceinline__ void send_columns(const TensorMap* w, const TensorMap* a, const TensorMap* b, Ring ring, bool fixed) const {
        const u32 rank_row = block < 3 ? block * of.rank : 0, first = block == 0 ? of.first[0] : block == 1 ? of.first[1] : of.first[2];
        const u32 ahead = !fixed ? 0 : buffers() < ring.stages ? buffers() : ring.stages;
        for (u32 i = 0; i < ahead; i++) {
            barrier_expect(ring.full(), STEPS * copied());
            for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes + of_rows, w, (STEPS * i + l) * STEP, col, ring.full());
            ring.next();
        }
        ring.stage = ring.parity = 0;
        wait_for_others();
        for (u32 i = 0; i < buffers(); i++) {
            if (i >= ahead) ring.fill(STEPS * copied());
            for (u32 l = 0; l < STEPS; l++) {
                u32 to = ring.at() + l * step_bytes + of_rows;
                if (i >= ahead) copy_box(to, w, (STEPS * i + l) * STEP, col, ring.full());
                to += N * 128;
                for (u64 left = own; left; left &= left - 1, to += of.rank * 128)
                    copy_slot(to, a, (STEPS * i + l) * STEP, rank_row, __ffsll(left) - 1, ring.full());
            }
            ring.next();
        }
        for (u64 left = own; left; left &= left - 1) {
            ring.fill(N * 128);
            copy_slot(ring.at(), b, 0, col - first, __ffsll(left) - 1, ring.full());
            ring.next();
        }
    }
    __device__ __forceinline__ void send_rows(const TensorMap* x, Ring ring) const {
        wait_for_others();
        for (u32 i = 0; i < buffers(); i++) {
            barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);
            for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes, x, (STEPS * i + l) * STEP, row, ring.full());
            ring.next();
        }
    }
    template <class Put> __device__ __forceinline__ void consume(Ring ring, bf16* u, const Put& put) const {
        wait_for_others();
        // Sums of the layer's outputs, then of u.
        float both[(N + FEW_U) / 2];
        Reader reader = {0, false};
        for (u32 i = 0; i < buffers(); i++) {
            barrier_wait(ring.full(), ring.parity);
            hold(both);
            begin_products();
#pragma unroll
            for (u32 l = 0; l < STEPS; l++) {
                const u32 at = ring.at() + l * step_bytes;
                multiply_step<false, 4, N + FEW_U>(both, at, at + of_rows, reader.is_begun || l > 0);
            }
            reader.end_step(ring);
        }
        reader.end(ring);
        hold(both);
        const u32 r = row + own_row();
        if (count > 0) {
            // The first of u's columns that are of the row's own slot. Others are zeros in the last products.
            u32 begins[2];
            float scale[2];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 slot = slots.at(r + 8 * half, of.rows);
                const bool has = slot < slots.count;
                begins[half] = has ? __popcll(own & (((u64)1 << slot) - 1)) * of.rank : FEW_U;
                scale[half] = has ? slots.scales[slot] : 0.0f;
            }
            u32 rows[FEW_U / 16][4];
#pragma unroll
            for (u32 j = 0; j < FEW_U / 8; j++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const float* of_u = both + N / 2 + 4 * j + 2 * half;
                    const u32 at = j * 8 + threadIdx.x % 4 * 2;
                    const bool is_own = at >= begins[half] && at < begins[half] + of.rank;
                    const u32 two = is_own ? pack_bf16(scale[half] * of_u[0], scale[half] * of_u[1]) : 0;
                    rows[j / 2][j % 2 * 2 + half] = two;
                    if (is_first && is_own) *(u32*)(u + ((u64)(r + 8 * half) * of.blocks + block) * of.rank + at - begins[half]) = two;
                }
            const u32 steps = of.rank / 16;
            u32 step = 0;
            hold(both);
            begin_products();
            // The products in u's columns are not used.
#pragma unroll
            for (u32 k = 0; k < FEW_U / 16; k++) {
                if (k >= count * steps) continue;
                if (step == 0) barrier_wait(ring.full(), ring.parity);
                multiply_left(both, rows[k], operand(ring.at() + step * 32), 1);
                if (++step == steps) step = 0, ring.next();
            }
            end_products();
            wait_products<0>();
            hold(both);
        }
        put.template row<N, N + FEW_U, 0>(both, r, col, end, of);
        put.template row<N, N + FEW_U, 1>(both, r + 8, col, end, of);
    }
    template <class Put>
    __device__ __forceinline__ void run(const SlotMaps& maps, const TensorMap* a, u32 stages, bool fixed, bf16* u, const Put& put) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX];
        const Ring ring = ring_of(barriers, dynamic_shared, stages, STEPS * step_bytes, 4);
        const u32 warp = own_warp();
        if (warp == 4) {
            const TensorMap* b = block == 0 ? maps.b[0] : block == 1 ? maps.b[1] : maps.b[2];
            if (threadIdx.x % WARP == 0) send_columns(maps.w, a, b, ring, fixed);
        } else if (warp == 5) {
            if (threadIdx.x % WARP == 0) send_rows(maps.x, ring);
        } else {
            consume(ring, u, put);
        }
    }
};

/// A tile of N columns of one of the layer's blocks and 64 rows for each of GROUPS groups of warps. The kernel before it
/// makes u, and has waited for those before itself: here only u and what the outputs are written over are waited for.
template <u32 N, u32 GROUPS> struct SlotTile : OwnTile {
    /// Steps of a buffer. B comes in pieces of 16 of its columns, several in a buffer.
    static constexpr u32 STEPS = N < 64 ? 2 : 1, ROWS = 64 * GROUPS, WARPS = 4 * GROUPS, PIECES = 4, PIECE_BYTES = N * 32;
    const Layer& of;
    const SlotTable& slots;
    /// Bytes of a step: of a box of rows, and with W's columns. What lies after the rows that there are is taken for rows
    /// that are not stored.
    u32 of_rows, step_bytes;

    __device__ __forceinline__ SlotTile(const Layer& of, const SlotTable& slots)
        : OwnTile(of, N),
          of(of),
          slots(slots),
          of_rows((of.rows < ROWS ? (of.rows + 7) / 8 * 8 : ROWS) * 128),
          step_bytes(of_rows + N * 128) {
        row *= GROUPS;
    }
    __device__ __forceinline__ u32 buffers() const { return tiles_of(of.steps, STEPS); }
    /// The slots whose adapters the tile's sums take.
    __device__ __forceinline__ u64 own_slots() const { return block < 3 ? slots.among(row, ROWS, of.rows) : 0; }
    /// The pieces of their B, one slot after the other.
    __device__ __forceinline__ u32 pieces(u64 own) const { return __popcll(own) * tiles_of(of.rank, 16); }

    /// Copies W and B.
    __device__ __forceinline__ void send_weights(const SlotMaps& maps, Ring ring) const {
        u64 own = own_slots();
        if (threadIdx.x % WARP > 0) return;
        for (u32 i = 0; i < buffers(); i++) {
            ring.fill(STEPS * step_bytes);
            for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes + of_rows, maps.w, (STEPS * i + l) * STEP, col, ring.full());
            ring.next();
        }
        const TensorMap* b = block == 0 ? maps.b[0] : block == 1 ? maps.b[1] : maps.b[2];
        const u32 first = block == 0 ? of.first[0] : block == 1 ? of.first[1] : of.first[2];
        u32 l = 0;
        for (u32 left = pieces(own); left > 0;) {
            const u32 here = left < PIECES ? left : PIECES;
            ring.fill(here * PIECE_BYTES);
            for (u32 i = 0; i < here; i++) {
                copy_slot(ring.at() + i * PIECE_BYTES, b, l, col - first, __ffsll(own) - 1, ring.full());
                if ((l += 16) >= of.rank) l = 0, own &= own - 1;
            }
            ring.next();
            left -= here;
        }
    }
    __device__ __forceinline__ void send_inputs(const SlotMaps& maps, Ring ring) const {
        for (u32 i = 0; i < buffers(); i++) {
            barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);
            for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes, maps.x, (STEPS * i + l) * STEP, row, ring.full());
            ring.next();
        }
    }
    /// A thread's columns of u from column `l` of its block's on, in the order in which products take them.
    __device__ __forceinline__ void load(u32 (&of_u)[16], const bf16* u, u32 r, const u32 (&slot_of)[2], u32 l) const {
#pragma unroll
        for (u32 j = 0; j < 8; j++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 own = l + j * 8 + threadIdx.x % 4 * 2;
                const bool here = slot_of[half] < slots.count && own < of.rank;
                of_u[j / 2 * 4 + j % 2 * 2 + half] = here ? *(const u32*)(u + ((u64)(r + 8 * half) * of.blocks + block) * of.rank + own) : 0;
            }
    }
    /// Adds u B^T: a thread's u of 64 columns at a time, with zeros in rows of other slots.
    __device__ __forceinline__ void add(float (&sums)[N / 2], Ring ring, u64 own, u32 (&of_u)[16], const bf16* u, u32 r, const u32 (&slot_of)[2]) const {
        u32 l = 0;
        for (u32 left = pieces(own); left > 0;) {
            u32 rows[PIECES][4];
#pragma unroll
            for (u32 i = 0; i < PIECES; i++) {
                const bool here = i < left;
                const u32 slot = here ? __ffsll(own) - 1 : ~0u - 1, k = l / 16 % 4;
                if (here && of.rank > STEP && k == 0) load(of_u, u, r, slot_of, l);
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const u32 two = k == 0 ? of_u[j] : k == 1 ? of_u[4 + j] : k == 2 ? of_u[8 + j] : of_u[12 + j];
                    rows[i][j] = slot_of[j % 2] == slot ? two : 0;
                }
                if (here && (l += 16) >= of.rank) l = 0, own &= own - 1;
            }
            barrier_wait(ring.full(), ring.parity);
            hold(sums);
            begin_products();
#pragma unroll
            for (u32 i = 0; i < PIECES; i++)
                if (i < left) multiply_left(sums, rows[i], narrow_operand(ring.at() + i * PIECE_BYTES), 1);
            end_products();
            wait_products<0>();
            hold(sums);
            if (threadIdx.x % WARP == 0) barrier_arrive(ring.empty(ring.stage));
            ring.next();
            left -= left < PIECES ? left : PIECES;
        }
    }
    template <class Put> __device__ __forceinline__ void consume(Ring ring, u32 group, const bf16* u, const Put& put) const {
        const u32 r = row + group * 64 + own_row(), slot_of[2] = {slots.at(r, of.rows), slots.at(r + 8, of.rows)};
        const u64 own = own_slots();
        // u is read while the last steps' products run.
        const u32 late = buffers() > 2 ? buffers() - 2 : 0;
        u32 of_u[16];
        float sums[N / 2];
        Reader reader = {0, false};
        for (u32 i = 0; i < buffers(); i++) {
            if (i == late) {
                wait_for_others();
                if (own) load(of_u, u, r, slot_of, 0);
            }
            barrier_wait(ring.full(), ring.parity);
            hold(sums);
            begin_products();
#pragma unroll
            for (u32 l = 0; l < STEPS; l++) {
                const u32 at = ring.at() + l * step_bytes;
                multiply_step<false, 4, N>(sums, at + group * 64 * 128, at + of_rows, reader.is_begun || l > 0);
            }
            reader.end_step(ring);
        }
        reader.end(ring);
        hold(sums);
        add(sums, ring, own, of_u, u, r, slot_of);
        put.template row<N, N, 0>(sums, r, col, end, of);
        put.template row<N, N, 1>(sums, r + 8, col, end, of);
    }
    template <class Put> __device__ __forceinline__ void run(const SlotMaps& maps, u32 stages, const bf16* u, const Put& put) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX];
        const Ring ring = ring_of(barriers, dynamic_shared, stages, STEPS * step_bytes, WARPS);
        const u32 warp = own_warp();
        if (warp == WARPS) {
            send_weights(maps, ring);
        } else if (warp > WARPS) {
            if (threadIdx.x % WARP == 0) send_inputs(maps, ring);
        } else {
            consume(ring, warp / 4, u, put);
        }
    }
};
#endif

#define SLOTS const u32 *of_row, const float *scales, u32 count
#define OF_SLOTS const SlotTable slots = {of_row, scales, count}

/// The kernel after it begins when all blocks have waited for those before this one: it reads what this one reads.
extern "C" __global__ void __launch_bounds__(160) adapter_u_slots(MAP(x), MAP(a), LAYER, SLOTS, bf16* u) {
    wait_for_others();
    call_others();
    ON_HOPPER(OF_LAYER; OF_SLOTS; (SlotsU{of, slots}.run(&x, &a, stages, u));)
}

#define TILE(NAME, N, GROUPS, PUT, ...)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS + 64) NAME##_##N##_##GROUPS(                                         \
        MAP(x), MAP(w), MAP(b0), MAP(b1), MAP(b2), LAYER, SLOTS, const bf16* u, __VA_ARGS__) {                                     \
        call_others();                                                                                                             \
        ON_HOPPER(OF_LAYER; OF_SLOTS; const SlotMaps maps = {&x, &w, {&b0, &b1, &b2}};                                             \
                  const SlotTile<N, GROUPS> tile(of, slots); tile.run(maps, stages, u, PUT);)                                      \
    }
/// `is_fixed`: W was written before the kernels that precede this one.
#define FEW(NAME, N, PUT, ...)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(192) NAME##_##N(MAP(x), MAP(w), MAP(a), MAP(b0), MAP(b1), MAP(b2), LAYER, SLOTS,   \
                                                                 u32 is_fixed, bf16* u, __VA_ARGS__) {                             \
        call_others();                                                                                                             \
        ON_HOPPER(OF_LAYER; OF_SLOTS; const SlotMaps maps = {&x, &w, {&b0, &b1, &b2}};                                             \
                  const FewSlots<N> few(of, slots); few.run(maps, &a, stages, is_fixed, u, PUT);)                                  \
    }
#define FEWS(N)                                                                                                                    \
    FEW(few_slots_bf16, N, (ToBf16{out, bias}), const bf16* bias, bf16* out)                                                       \
    FEW(few_slots_float, N, (ToF32{out, added}), const float* added, float* out)
FEWS(32)
FEWS(64)
FEWS(80)

#define TILES(N, GROUPS)                                                                                                           \
    TILE(adapted_slots_bf16, N, GROUPS, (ToBf16{out, bias}), const bf16* bias, bf16* out)                                          \
    TILE(adapted_slots_float, N, GROUPS, (ToF32{out, added}), const float* added, float* out)
TILES(32, 1)
TILES(64, 1)
TILES(80, 1)
TILES(128, 2)
TILES(192, 2)
