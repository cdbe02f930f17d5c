// The plan of tiles of keys and their queries in the backward pass of attention; see attention_backward.cu.
//
// The plan, made by one block before the keys' turn:
//   counts   [4] u32: items, steps of a piece at most
//   of_row   [M] u32: 1 + the row's segment, or 0
//   firsts   [S] u32: the segment's first tile
//   tiles    [..] Tile, for all segments in order
//   items    [..] Item, those with many steps first; their order decides when they run, and nothing else

/// Minimum steps of a piece.
#define PIECE_MIN 4
/// Lengths of pieces that the items' order distinguishes.
#define LENGTHS 16

/// A tile of up to 64 keys.
struct Tile {
    u32 segment;
    u32 key;        // its first, counted from the segment's first
    u32 steps;
    u32 first_part; // 64 rows of `parts` for each piece but the first begin here
};
struct Item {
    u32 tile, piece;
};

struct Plan {
    u32* counts;
    u32* of_row;
    u32* firsts;
    Tile* tiles;
    Item* items;
    u32 max_parts; // rows of `parts`
    u32 at_once;   // blocks that a large card runs at a time; the same on every card, as bits depend on it
};

/// Steps of `rows` rows.
__device__ __forceinline__ u32 steps_of(u32 rows) { return (rows + UNIT - 1) / UNIT; }
/// Pieces of a tile; `length` is the plan's `counts[1]`.
__device__ __forceinline__ u32 pieces_of(const Tile& tile, u32 length) { return (tile.steps + length - 1) / length; }

/// Inclusive sums over a block; `total` is the last one.
__device__ __forceinline__ u32 block_sums(u32 x, u32& total, u32* shared) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        u32 other = __shfl_up_sync(ALL_LANES, x, step);
        if (lane >= step) x += other;
    }
    __syncthreads();
    if (lane == WARP - 1) shared[warp] = x;
    __syncthreads();
    u32 before = 0;
    total = 0;
    for (u32 w = 0; w < blockDim.x / WARP; w++) {
        if (w == warp) before = total;
        total += shared[w];
    }
    return before + x;
}

/// The rows' segments, and the segments' tiles with their steps; returns the number of tiles.
__device__ __forceinline__ u32 plan_tiles(const u32* segments, const Plan& plan, const Shape& shape, u32* shared) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, group = shape.group();
    for (u32 row = threadIdx.x; row < shape.rows; row += blockDim.x) plan.of_row[row] = 0;
    u32 num_tiles = 0;
    for (u32 base = 0; base < shape.segments; base += blockDim.x) {
        const u32 s = base + threadIdx.x;
        u32 own = 0, all;
        if (s < shape.segments) {
            const Segment segment = segment_at(segments, s);
            if (segment_ok(segment, shape)) own = steps_of(segment.rows);
        }
        const u32 upto = block_sums(own, all, shared);
        if (s < shape.segments) plan.firsts[s] = num_tiles + upto - own;
        num_tiles += all;
    }
    __syncthreads();
    for (u32 s = warp; s < shape.segments; s += warps) {
        const Segment segment = segment_at(segments, s);
        if (!segment_ok(segment, shape)) continue;
        for (u32 i = lane; i < segment.rows; i += WARP) plan.of_row[segment.first_row + i] = s + 1;
        for (u32 key = lane * UNIT; key < segment.rows; key += WARP * UNIT)
            plan.tiles[plan.firsts[s] + key / UNIT] = {s, key, steps_of((segment.rows - (shape.whole ? 0 : key)) * group), 0};
    }
    __syncthreads();
    // Children's steps are counted at their parents; integers, so the order does not matter.
    for (u32 s = warp; s < shape.segments; s += warps) {
        const Segment child = segment_at(segments, s);
        if (child.parent == NO_PARENT || !index_ok(BAD_ROW, child.parent, shape.rows)) continue;
        const u32 of = plan.of_row[child.parent];
        if (of == 0 || !segment_ok(child, shape)) continue;
        const Segment parent = segment_at(segments, of - 1);
        if (parent.first_row != child.parent || parent.parent != NO_PARENT) continue;
        for (u32 key = lane * UNIT; key < min(parent.rows, child.first_position); key += WARP * UNIT)
            atomicAdd(&plan.tiles[plan.firsts[of - 1] + key / UNIT].steps, steps_of(child.rows * group));
    }
    __syncthreads();
    return num_tiles;
}

/// Cuts the tiles into pieces.
__device__ __forceinline__ void make_plan(const u32* segments, const Plan& plan, const Shape& shape) {
    __shared__ u32 shared[WARP];
    __shared__ u32 places[LENGTHS]; // of the next item of a length, from the longest on
    if (threadIdx.x < LENGTHS) places[threadIdx.x] = 0;
    const u32 num_tiles = plan_tiles(segments, plan, shape, shared);
    u32 all;
    auto items_of = [&](u32 length) {
        u32 sum = 0;
        for (u32 base = 0; base < num_tiles; base += blockDim.x) {
            const u32 t = base + threadIdx.x;
            block_sums(t < num_tiles ? pieces_of(plan.tiles[t], length) : 0, all, shared);
            sum += all;
        }
        return sum;
    };
    // A tile has less than steps / length pieces after its first, each of 64 rows.
    const u32 steps = items_of(1);
    const u32 fitting = ((u64)steps * UNIT + plan.max_parts - 1) / plan.max_parts;
    // The least length that gives so few items that all begin at once; or two for a tile, where there are many.
    const u32 wanted = max(plan.at_once / shape.kv_heads, 2 * num_tiles);
    u32 length = max(fitting, (u32)PIECE_MIN), enough = max(length, steps);
    while (length < enough) {
        const u32 middle = (length + enough) / 2;
        if (items_of(middle) > wanted) length = middle + 1;
        else enough = middle;
    }
    auto place_of = [&](const Tile& tile, u32 pieces) -> u32* {
        return &places[(length - (tile.steps + pieces - 1) / pieces) * LENGTHS / length];
    };
    u32 parts = 0;
    for (u32 base = 0; base < num_tiles; base += blockDim.x) {
        const u32 t = base + threadIdx.x;
        const u32 pieces = t < num_tiles ? pieces_of(plan.tiles[t], length) : 0;
        const u32 mine = pieces > 0 ? (pieces - 1) * UNIT : 0;
        const u32 upto = block_sums(mine, all, shared);
        if (pieces > 0) {
            plan.tiles[t].first_part = parts + upto - mine;
            atomicAdd(place_of(plan.tiles[t], pieces), pieces);
        }
        parts += all;
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
        plan.counts[1] = length;
    }
    __syncthreads();
    for (u32 t = threadIdx.x; t < num_tiles; t += blockDim.x) {
        const u32 pieces = pieces_of(plan.tiles[t], length);
        if (pieces == 0) continue;
        const u32 first = atomicAdd(place_of(plan.tiles[t], pieces), pieces);
        for (u32 piece = 0; piece < pieces; piece++) plan.items[first + piece] = {t, piece};
    }
}

#define PLAN u32 *counts, u32 *of_row, u32 *firsts, Tile *tiles, Item *items, u32 max_parts, u32 at_once
#define MAKE_PLAN make_plan(segments, Plan{counts, of_row, firsts, tiles, items, max_parts, at_once}, SHAPE)

// ---- the queries of a piece -----------------------------------------------------------------------------------------

/// Division by the group's size, which a thread does for every 16 bytes it fetches: a product, exact below 2^32 / size.
struct Group {
    u32 size;
    u64 inverse; // 2^32 / size, rounded up
    __device__ __forceinline__ Group(u32 size) : size(size), inverse((u64)(0xffffffffu / size) + 1) {}
    __device__ __forceinline__ u32 token(u32 row) const { return (u32)(row * inverse >> 32); }
};

/// The queries of a piece, step by step: the segment's own, then its children's.
struct Queries {
    const u32* segments;
    const Shape& shape;
    u32 group;
    u32 parent;              // first row of the segment whose keys these are; its children name it
    u32 key;                 // first of the tile, counted from the segment's first
    u32 from, to;            // the piece's steps
    u32 scan, upto;          // next segment to look at; steps of those before it
    u32 first_row, row, end; // of the step: the segment's first row, its own first row, the end of the run
    u32 bound;               // own keys that a child's rows see, or own rows of a whole segment; 0 for other own rows,
                             // which see as many as they are

    /// Begins with the own rows that see the tile.
    __device__ __forceinline__ Queries(const u32* segments, const Shape& shape, u32 group, const Segment& own,
                                       const Tile& tile, u32 piece, u32 pieces)
        : segments(segments), shape(shape), group(group), parent(own.first_row), key(tile.key) {
        from = (u64)tile.steps * piece / pieces;
        to = (u64)tile.steps * (piece + 1) / pieces;
        scan = own.parent == NO_PARENT ? 0 : shape.segments;
        upto = 0;
        const u32 first = shape.whole ? 0 : key * group;
        if (!enter(own.first_row, first, own.rows * group, shape.whole ? own.rows : 0)) find();
    }
    /// Moves on to the next step; false at the end. Every piece has steps.
    __device__ __forceinline__ bool next() {
        row += UNIT;
        return row < end || find();
    }
    /// Takes those steps of a segment's rows that are in the piece; false if none is. `upto` is below `to`.
    __device__ __forceinline__ bool enter(u32 segment_row, u32 first, u32 last, u32 keys) {
        const u32 before = upto;
        upto += steps_of(last - first);
        if (upto <= from) return false;
        first_row = segment_row;
        bound = keys;
        row = first + (max(from, before) - before) * UNIT;
        end = min(last, first + (min(to, upto) - before) * UNIT);
        return true;
    }
    /// The next child with rows in the piece that see the tile.
    __device__ __forceinline__ bool find() {
        while (scan < shape.segments && upto < to) {
            const u32 s = scan + threadIdx.x % WARP;
            const u32* field = segments + (u64)s * SEGMENT_FIELDS;
            const u32 who = __ballot_sync(ALL_LANES, s < shape.segments && field[4] == parent);
            if (!who) {
                scan += WARP;
                continue;
            }
            scan += __ffs(who) - 1;
            const Segment child = segment_at(segments, scan++);
            if (child.first_position <= key || !segment_ok(child, shape)) continue;
            if (enter(child.first_row, 0, child.rows * group, child.first_position)) return true;
        }
        return false;
    }
};

/// Sum over a row of x y, which are held as left operands: `ROW` as in `unit_weights`.
template <int D, int ROW>
__device__ __forceinline__ float row_dot(const u32 (&x)[D / STEP][4], const u32 (&y)[D / STEP][4]) {
    float sum = 0.0f;
#pragma unroll
    for (u32 t = 0; t < D / STEP; t++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 a = x[t][ROW + 2 * i], b = y[t][ROW + 2 * i];
            sum = fma(low_f32(a), low_f32(b), sum);
            sum = fma(high_f32(a), high_f32(b), sum);
        }
    return row_sum(sum);
}
