// Tiles of 128 rows by Hopper's own instructions: two groups of four warps have 64 rows each, and all threads copy,
// from any rows (experts_tile.cuh), while products run. A sum is one chain of steps of 16 depths.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ROWS 128

/// Makes earlier writes to shared memory visible to products after the next barrier.
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A group's sums of 64 rows and COLS columns.
template <u32 COLS> struct GroupSums {
    float of[COLS / 2];

    /// The group's first row, and the first of a thread's two.
    static __device__ __forceinline__ u32 first() { return threadIdx.x / 128 * 64; }
    static __device__ __forceinline__ u32 row() { return first() + threadIdx.x % 128 / WARP * 16 + threadIdx.x % WARP / 4; }

    /// Adds a step of 64 depths; from zero if not `more`.
    template <bool A_BY_LINE, bool B_BY_LINE> __device__ __forceinline__ void add(u32 stage, u32 more = 1) {
        const u32 left = stage + (A_BY_LINE ? first() * 128 : first() / 64 * PANEL_BYTES), right = stage + ROWS * 128;
#pragma unroll
        for (u32 step = 0; step < DEPTH / 16; step++) {
            const u64 a = operand(left + step * (A_BY_LINE ? 32 : 2048));
            const u64 b = B_BY_LINE ? operand(right + step * 32) : operand(right + step * 2048, PANEL_BYTES);
            multiply<!B_BY_LINE, !A_BY_LINE>(of, a, b, more + step > 0);
        }
    }
    /// Gives `put` each two neighbours of the first `rows` rows: their row, their first column and the sums.
    template <class Put> __device__ __forceinline__ void each(u32 rows, const Put& put) const {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (row() + half * 8 >= rows) continue;
#pragma unroll
            for (u32 c = 0; c < COLS / 8; c++) {
                put(row() + half * 8, c * 8 + threadIdx.x % 4 * 2, of[c * 4 + half * 2], of[c * 4 + half * 2 + 1]);
            }
        }
    }
};

/// Runs steps of 64 depths through STAGES buffers from `shared` on: `load(stage, depth)` copies. IDLE groups only copy.
template <u32 STAGES, bool A_BY_LINE, bool B_BY_LINE, bool IDLE, u32 COLS, class Load>
__device__ __forceinline__ void run_group(u8* shared, u32 length, GroupSums<COLS>& sums, const Load& load) {
    constexpr u32 STAGE_BYTES = (ROWS + COLS) * 128;
    const u32 first = shared_address(shared);
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 2; stage++) {
        if (stage * DEPTH < length) load(shared + stage * STAGE_BYTES, stage * DEPTH);
        copy_async_commit();
    }
    u32 stage = 0, free = STAGES - 2;
    for (u32 depth = 0; depth < length; depth += DEPTH) {
        copy_async_wait<STAGES - 3>();
        fence_copies();
        __syncthreads();
        if constexpr (!IDLE) {
            hold(sums.of);
            begin_products();
            sums.template add<A_BY_LINE, B_BY_LINE>(first + stage * STAGE_BYTES);
            end_products();
        }
        // Fills the buffer of the step before the last, whose products ended before the barrier.
        const u32 ahead = depth + (STAGES - 2) * DEPTH;
        if (ahead < length) load(shared + free * STAGE_BYTES, ahead);
        copy_async_commit();
        if constexpr (!IDLE) wait_products<1>();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        free = free == STAGES - 1 ? 0 : free + 1;
    }
    if constexpr (!IDLE) {
        wait_products<0>();
        hold(sums.of);
    }
}

/// The sums of a block's first `rows` rows.
template <u32 STAGES, bool A_BY_LINE, bool B_BY_LINE, u32 COLS, class Load>
__device__ __forceinline__ void run_products(u8* shared, u32 length, u32 rows, GroupSums<COLS>& sums, const Load& load) {
    if (sums.first() < rows) {
        run_group<STAGES, A_BY_LINE, B_BY_LINE, false>(shared, length, sums, load);
    } else {
        run_group<STAGES, A_BY_LINE, B_BY_LINE, true>(shared, length, sums, load);
    }
}

/// Aligns buffers to the order of pieces.
__device__ __forceinline__ u8* aligned_shared(u8* shared) { return shared + (1024 - shared_address(shared) % 1024) % 1024; }

/// Starts copying 16 bytes to an address in shared memory.
__device__ __forceinline__ void copy_async_16_to(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Writes a group's sums of `rows` rows and `cols` columns, multiples of eight, to rows `pitch` elements apart: 16
/// bytes of bf16 at a time.
template <u32 COLS> __device__ __forceinline__ void put_group(const GroupSums<COLS>& sums, bf16* to, u64 pitch, u32 rows, u32 cols) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = sums.row() + half * 8;
#pragma unroll
        for (u32 c = 0; c < COLS / 8; c += 4) {
            u32 words[4];
#pragma unroll
            for (u32 t = 0; t < 4; t++) words[t] = pack_bf16(sums.of[(c + t) * 4 + half * 2], sums.of[(c + t) * 4 + half * 2 + 1]);
            transpose4(words);
            const u32 col = (c + threadIdx.x % 4) * 8;
            if (row < rows && col < cols) *(uint4*)(to + row * pitch + col) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}
template <u32 COLS> __device__ __forceinline__ void put_group(const GroupSums<COLS>& sums, float* to, u64 pitch, u32 rows, u32 cols) {
    sums.each(rows, [&](u32 row, u32 col, float a, float b) {
        if (col < cols) *(float2*)(to + row * pitch + col) = make_float2(a, b);
    });
}
#endif
