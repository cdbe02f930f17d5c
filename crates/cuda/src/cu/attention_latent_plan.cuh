// The plan of tiles of latents and the rows that see them, of both kinds of kernels.

/// Minimum steps of a piece, on average, and heads for each of which there may be one more after the first.
#define PIECE_STEPS 128
#define PIECE_HEADS 16

/// Pieces of a tile.
__device__ __forceinline__ u32 latent_pieces(const Tile& tile, u32 heads) {
    return min((tile.steps + PIECE_STEPS - 1) / PIECE_STEPS, 1 + max(heads / PIECE_HEADS, 1u));
}

/// Steps and cuts of tiles into items, those with many steps first. One block makes the plan.
__device__ __forceinline__ void make_latent_plan(const u32* segments, const Plan& plan, const Shape& shape) {
    __shared__ u32 shared[WARP];
    __shared__ u32 places[LENGTHS]; // of the next item of a length, from the longest on
    __shared__ u32 longest;
    if (threadIdx.x < LENGTHS) places[threadIdx.x] = 0;
    if (threadIdx.x == 0) longest = 1;
    const u32 num_tiles = plan_tiles(segments, plan, shape, shared);
    auto pieces_of_tile = [&](const Tile& tile) { return latent_pieces(tile, shape.heads); };
    u32 parts = 0, all;
    for (u32 base = 0; base < num_tiles; base += blockDim.x) {
        const u32 t = base + threadIdx.x;
        const u32 pieces = t < num_tiles ? pieces_of_tile(plan.tiles[t]) : 0, mine = pieces > 0 ? pieces - 1 : 0;
        const u32 upto = block_sums(mine, all, shared);
        if (pieces > 0) {
            plan.tiles[t].first_part = (parts + upto - mine) * UNIT;
            atomicMax(&longest, (plan.tiles[t].steps + pieces - 1) / pieces);
        }
        parts += all;
    }
    __syncthreads();
    auto place_of = [&](const Tile& tile, u32 pieces) -> u32* {
        return &places[(longest - (tile.steps + pieces - 1) / pieces) * LENGTHS / (longest + 1)];
    };
    for (u32 t = threadIdx.x; t < num_tiles; t += blockDim.x) {
        const u32 pieces = pieces_of_tile(plan.tiles[t]);
        atomicAdd(place_of(plan.tiles[t], pieces), pieces);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 items = 0;
        for (u32 i = 0; i < LENGTHS; i++) {
            const u32 count = places[i];
            places[i] = items;
            items += count;
        }
        plan.counts[0] = items;
    }
    __syncthreads();
    for (u32 t = threadIdx.x; t < num_tiles; t += blockDim.x) {
        const u32 pieces = pieces_of_tile(plan.tiles[t]);
        const u32 first = atomicAdd(place_of(plan.tiles[t], pieces), pieces);
        for (u32 piece = 0; piece < pieces; piece++) plan.items[first + piece] = {t, piece};
    }
}
