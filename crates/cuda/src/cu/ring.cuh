// Buffers in shared memory through which one thread copies operands for the warps that multiply them.

/// Maximum buffers of a ring.
#define STAGES_MAX 24

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A ring of buffers, each with a barrier for when it is full and one for when it is empty.
struct Ring {
    u32 stages, stage_bytes, buffers, barriers, stage, parity;

    __device__ __forceinline__ u32 full() const { return barriers + stage * 16; }
    __device__ __forceinline__ u32 empty(u32 of) const { return barriers + of * 16 + 8; }
    __device__ __forceinline__ u32 at() const { return buffers + stage * stage_bytes; }
    __device__ __forceinline__ void next() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
    /// Waits for an empty buffer, and expects `bytes` in it.
    __device__ __forceinline__ void fill(u32 bytes) const {
        barrier_wait(empty(stage), parity ^ 1);
        barrier_expect(full(), bytes);
    }
};

/// A ring whose buffers are emptied by `warps` warps.
__device__ __forceinline__ Ring ring_of(u64* barriers, u8* shared, u32 stages, u32 stage_bytes, u32 warps) {
    const Ring ring = {stages, stage_bytes, (shared_address(shared) + 1023) / 1024 * 1024, shared_address(barriers), 0, 0};
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < stages; i++) {
            barrier_init(ring.barriers + i * 16, 1);
            barrier_init(ring.empty(i), warps);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    return ring;
}

/// Tells the sender which buffers have been read: the one before is free when only the last step is under way.
struct Reader {
    u32 before;
    bool is_begun;

    __device__ __forceinline__ void end_step(Ring& ring) {
        end_products();
        wait_products<1>();
        if (is_begun && threadIdx.x % WARP == 0) barrier_arrive(ring.empty(before));
        before = ring.stage;
        is_begun = true;
        ring.next();
    }
    __device__ __forceinline__ void end(Ring& ring) {
        wait_products<0>();
        if (is_begun && threadIdx.x % WARP == 0) barrier_arrive(ring.empty(before));
        is_begun = false;
    }
};

/// The first of a thread's two rows in its group's 64.
__device__ __forceinline__ u32 own_row() { return threadIdx.x % 128 / WARP * 16 + threadIdx.x % WARP / 4; }
#endif
