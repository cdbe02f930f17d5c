// Shared by the attention kernels: segments, tiles of 16 rows, keys and values in shared memory.
//
// A row is a token with one query head. The rows of a segment and a key-value head are numbered token by token, the
// group's g heads within a token: row i is head i % g of token i / g. A warp holds 16 rows as the rows of its
// instructions; in what they produce, a thread holds two neighbouring columns of the rows lane / 4 and lane / 4 + 8.

/// Keys that are taken together, from absolute position 0 on.
#define UNIT 64
/// Keys of an instruction's step and of a half unit.
#define STEP 16
#define HALF 32
/// Rows of a warp.
#define TILE 16
/// Units of a chunk.
#define CHUNK_UNITS (ATTENTION_CHUNK / UNIT)

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define MINUS_INFINITY as_f32(0xff800000u)

/// A record of the batch.
struct Segment {
    u32 first_row, rows, first_position, table, parent;
};

/// The arguments of all attention kernels.
struct Shape {
    u32 rows;          // M
    u32 segments;      // S
    u32 table_entries; // length of all tables together
    u32 blocks;        // of the cache
    u32 max_keys;      // of any row, at most
    u32 heads;         // a
    u32 kv_heads;      // k
    u32 window;        // keys that a row sees, at most
    u32 whole;         // 1 if rows see all keys of their segment, which then has no parent

    /// Keys up to the last one that a segment's row of a token sees.
    __device__ __forceinline__ u32 keys(const Segment& s, u32 token) const {
        return s.first_position + (whole ? s.rows : token + 1);
    }
    /// The first key that a row of `keys` keys up to its own sees.
    __device__ __forceinline__ u32 from(u32 keys) const { return keys > window ? keys - window : 0; }
    __device__ __forceinline__ u32 group() const { return heads / kv_heads; }
    /// A row's place among the heads of all tokens: its elements begin at D times that.
    __device__ __forceinline__ u64 place(const Segment& s, u32 kv_head, u32 row) const {
        return (u64)(s.first_row + row / group()) * heads + kv_head * group() + row % group();
    }
    /// A cache block's number among the blocks of all heads.
    __device__ __forceinline__ u64 block(u32 entry, u32 kv_head) const { return (u64)entry * kv_heads + kv_head; }
};

__device__ __forceinline__ Segment segment_at(const u32* segments, u32 index) {
    const u32* s = segments + (u64)index * SEGMENT_FIELDS;
    return {s[0], s[1], s[2], s[3], s[4]};
}

/// True if the rows and the table of a segment are inside their arrays.
__device__ __forceinline__ bool segment_ok(const Segment& s, const Shape& shape) {
    u32 blocks = (s.first_position + s.rows + KV_BLOCK - 1) / KV_BLOCK;
    return index_ok(BAD_SEGMENT, s.first_row + s.rows, shape.rows + 1) &&
           index_ok(BAD_SEGMENT, s.table + blocks, shape.table_entries + 1) &&
           index_ok(BAD_SEGMENT, s.first_position + s.rows, shape.max_keys + 1);
}

/// Tiles of a segment, and how many would fit before its first position.
struct Tiles {
    u32 before, count;
    __device__ __forceinline__ Tiles() : before(0), count(0) {}
    __device__ __forceinline__ Tiles(const Segment& s, u32 group, u32 tile)
        : before(s.first_position * group / tile), count((s.rows * group + tile - 1) / tile) {}
    /// Tiles at `level` and above: a tile's level is the number of tiles that fit before it.
    __device__ __forceinline__ u32 from(u32 level) const {
        return min(count, before + count - min(before + count, level));
    }
};

/// Finds the `index`-th tile of `tile` rows; false if there are fewer. The whole warp calls it. `of` is the segment's
/// index and `place` the tile's within the segment, from the end. Blocks begin in this order, and those with the most
/// keys should not be last: tiles are in descending order of level where the segments fit the lanes, which they do
/// where they are long; else segment by segment.
__device__ __forceinline__ bool find_tile(const u32* segments, u32 num_segments, u32 group, u32 tile, u32 index,
                                          u32& of, u32& place) {
    const u32 lane = threadIdx.x % WARP;
    const bool by_level = num_segments <= 4 * WARP;
    // A lane counts four segments, so that 1,024 take eight rounds.
    for (u32 base = 0; base < num_segments; base += 4 * WARP) {
        Tiles tiles[4];
        u32 levels = 0, level = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 s = base + 4 * lane + i;
            if (s < num_segments) tiles[i] = Tiles(segment_at(segments, s), group, tile);
            levels = max(levels, tiles[i].before + tiles[i].count);
        }
        auto from = [&](u32 level) {
            return tiles[0].from(level) + tiles[1].from(level) + tiles[2].from(level) + tiles[3].from(level);
        };
        if (by_level) {
            if (__reduce_add_sync(ALL_LANES, from(0)) <= index) return false;
            // More than `index` tiles are at `level` and above, no more at `levels` and above.
            levels = __reduce_max_sync(ALL_LANES, levels);
            while (levels - level > 1) {
                const u32 middle = (level + levels) / 2;
                (__reduce_add_sync(ALL_LANES, from(middle)) > index ? level : levels) = middle;
            }
            index -= __reduce_add_sync(ALL_LANES, from(level + 1));
        }
        u32 count[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            count[i] = by_level ? tiles[i].from(level) - tiles[i].from(level + 1) : tiles[i].count;
        const u32 sum = count[0] + count[1] + count[2] + count[3];
        u32 upto = sum;
#pragma unroll
        for (u32 step = 1; step < WARP; step *= 2) {
            u32 other = __shfl_up_sync(ALL_LANES, upto, step);
            if (lane >= step) upto += other;
        }
        const u32 total = __shfl_sync(ALL_LANES, upto, WARP - 1);
        if (index < total) {
            u32 left = index - (upto - sum), s = base + 4 * lane; // of the lane that has it
            u32 last = tiles[0].before + tiles[0].count;
            bool more = true;
#pragma unroll
            for (u32 i = 0; i < 3; i++) {
                more = more && left >= count[i];
                if (more) left -= count[i], s++, last = tiles[i + 1].before + tiles[i + 1].count;
            }
            const int owner = __ffs(__ballot_sync(ALL_LANES, upto > index)) - 1;
            of = __shfl_sync(ALL_LANES, s, owner);
            place = __shfl_sync(ALL_LANES, by_level ? last - 1 - level : left, owner);
            return true;
        }
        index -= total;
    }
    return false;
}

/// Finds the segment of a row; false if none has it. The whole warp calls it.
__device__ __forceinline__ bool find_row(const u32* segments, u32 num_segments, u32 row, u32& of) {
    for (u32 base = 0; base < num_segments; base += WARP) {
        u32 s = base + threadIdx.x % WARP;
        bool mine = s < num_segments && row - segments[(u64)s * SEGMENT_FIELDS] < segments[(u64)s * SEGMENT_FIELDS + 1];
        u32 who = __ballot_sync(ALL_LANES, mine);
        of = base + __ffs(who) - 1;
        if (who) return true;
    }
    return false;
}

/// Element of a row's 16-byte piece in shared memory, permuted by the row: eight rows' same pieces hit different banks.
template <int D> __device__ __forceinline__ u32 swizzled(u32 row, u32 piece) {
    return row * D + ((piece ^ (row & 7)) * 8);
}
/// Element of a row's piece in panels of UNIT rows of 64 elements, as Hopper's products take them (hopper.cuh).
__device__ __forceinline__ u32 in_panels(u32 row, u32 piece) {
    return piece / 8 * UNIT * 64 + swizzled<64>(row, piece % 8);
}

/// A warp fetches `ROWS` rows of D elements to rows `first`.., a multiple of 8, of a shared buffer; those beyond the
/// first `valid` become zeros and are not read.
template <int D, int ROWS, bool PANELS = false>
__device__ __forceinline__ void fetch_rows(bf16* to, u32 first, const bf16* from, u32 valid) {
    const u32 lane = threadIdx.x % WARP;
    to += first * (PANELS ? 64 : D);
    from += lane * 8;
#pragma unroll
    for (u32 i = 0; i < ROWS * D / 8 / WARP; i++) {
        u32 row = (i * WARP + lane) / (D / 8), piece = (i * WARP + lane) % (D / 8);
        const u32 at = PANELS ? in_panels(row, piece) : swizzled<D>(row, piece);
        copy_async_16(to + at, from + i * WARP * 8, row < valid);
    }
}

/// Rows as a left operand, straight from memory: `low` and `high` are this lane's two rows, null for none.
template <int D>
__device__ __forceinline__ void read_rows(u32 (&to)[D / STEP][4], const bf16* low, const bf16* high) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 t = 0; t < D / STEP; t++) {
        u32 at = t * 8 + lane % 4; // in words
        to[t][0] = low ? ((const u32*)low)[at] : 0;
        to[t][1] = high ? ((const u32*)high)[at] : 0;
        to[t][2] = low ? ((const u32*)low)[at + 4] : 0;
        to[t][3] = high ? ((const u32*)high)[at + 4] : 0;
    }
}

/// Step t of 16 rows in shared memory as a left operand.
template <int D> __device__ __forceinline__ void read_left(u32 (&to)[4], const bf16* rows, u32 t) {
    const u32 lane = threadIdx.x % WARP;
    ldmatrix_x4(to, rows + swizzled<D>(lane % 16, 2 * t + lane / 16));
}

/// out[n] += step t of left . row n of 32 rows in shared memory.
template <int D>
__device__ __forceinline__ void dot_step(float (&out)[4][4], const u32 (&left)[4], const bf16* rows, u32 t) {
    const u32 lane = threadIdx.x % WARP;
    const u32 row = lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
#pragma unroll
    for (u32 pair = 0; pair < 2; pair++) {
        u32 b[4];
        ldmatrix_x4(b, rows + swizzled<D>(pair * 16 + row, 2 * t + piece));
        const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        mma_bf16(out[2 * pair], left, first);
        mma_bf16(out[2 * pair + 1], left, second);
    }
}

/// out[n] = left . row n of 32 rows in shared memory; each element one chain over D.
template <int D>
__device__ __forceinline__ void dot_half(float (&out)[4][4], const u32 (&left)[D / STEP][4], const bf16* rows) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) out[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (u32 t = 0; t < D / STEP; t++) dot_step<D>(out, left[t], rows, t);
}

/// out[n] = left . row n of 32 rows, all in shared memory; each element one chain over D.
template <int D>
__device__ __forceinline__ void dot_half_shared(float (&out)[4][4], const bf16* left, const bf16* rows) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) out[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (u32 t = 0; t < D / STEP; t++) {
        u32 step[4];
        read_left<D>(step, left, t);
        dot_step<D>(out, step, rows, t);
    }
}

/// out += left . 32 rows of D elements in shared memory; each element one chain over the rows.
template <int D>
__device__ __forceinline__ void sum_half(float (&out)[D / 8][4], const u32 (&left)[2][4], const bf16* rows) {
    const u32 lane = threadIdx.x % WARP;
    const u32 row = lane % 16, piece = lane / 16;
#pragma unroll
    for (u32 t = 0; t < 2; t++) {
#pragma unroll
        for (u32 pair = 0; pair < D / 16; pair++) {
            u32 b[4];
            ldmatrix_x4_trans(b, rows + swizzled<D>(t * STEP + row, 2 * pair + piece));
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            mma_bf16(out[2 * pair], left[t], first);
            mma_bf16(out[2 * pair + 1], left[t], second);
        }
    }
}

/// Makes what this thread copied to shared memory visible to Hopper's products after the next barrier.
__device__ __forceinline__ void copied() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Products of 32 columns, two bf16 in a word, as the left operand of the next product.
__device__ __forceinline__ void as_left(u32 (&to)[2][4], const float (&from)[4][4]) {
#pragma unroll
    for (u32 t = 0; t < 2; t++) {
        to[t][0] = pack_bf16(from[2 * t][0], from[2 * t][1]);
        to[t][1] = pack_bf16(from[2 * t][2], from[2 * t][3]);
        to[t][2] = pack_bf16(from[2 * t + 1][0], from[2 * t + 1][1]);
        to[t][3] = pack_bf16(from[2 * t + 1][2], from[2 * t + 1][3]);
    }
}

/// Max and sum over the four lanes that hold a row.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x = x + __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/// The rows of a tile, 16 a warp, that this thread holds.
template <int WARPS> struct TileRows {
    u32 num_keys;    // that any row of the tile sees
    u32 warp_keys;   // that any row of the warp sees; 0 where it has no rows
    u32 row_keys[2]; // that this lane's rows see; 0 for a row that is not there
    u32 first_key;   // that any row of the tile sees
    u32 row_from[2]; // first keys that this lane's rows see
    u64 places[2];   // of this lane's rows

    /// Tile `place` from the end: the last ones, which have the most keys, begin first.
    __device__ __forceinline__ TileRows(const Segment& segment, const Shape& shape, u32 kv_head, u32 place) {
        const u32 group = shape.group(), size = WARPS * TILE, num_rows = segment.rows * group;
        const u32 first = ((num_rows + size - 1) / size - 1 - place) * size;
        const u32 mine = first + threadIdx.x / WARP * TILE;
        auto keys_of = [&](u32 row) -> u32 { return row < num_rows ? shape.keys(segment, row / group) : 0; };
        num_keys = keys_of(min(num_rows, first + size) - 1);
        first_key = shape.from(keys_of(first));
        warp_keys = mine < num_rows ? keys_of(min(num_rows, mine + TILE) - 1) : 0;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const u32 row = mine + threadIdx.x % WARP / 4 + 8 * r;
            row_keys[r] = keys_of(row);
            row_from[r] = shape.from(row_keys[r]);
            places[r] = shape.place(segment, kv_head, row);
        }
    }

    /// The warp's rows of a [M, a, D] array as a left operand.
    template <int D> __device__ __forceinline__ void read(u32 (&to)[D / STEP][4], const bf16* from) const {
        read_rows<D>(to, row_keys[0] ? from + places[0] * D : nullptr, row_keys[1] ? from + places[1] * D : nullptr);
    }
};

/// A segment's keys and values, unit by unit through two buffers: while one is used, the next one arrives.
template <int D, int WARPS, bool PANELS = false> struct KeyStream {
    static constexpr u32 BUFFER = 2 * UNIT * D; // elements
    const bf16* keys;
    const bf16* values;
    const u32* table;
    const Shape& shape;
    u32 kv_head, first_key, num_keys, first_unit, num_units;
    bf16* buffers; // [2][keys, values][UNIT][D]
    u32 now, next; // a lane's table entry of the chunk that is fetched from, and of the next one

    __device__ __forceinline__ KeyStream(const bf16* keys, const bf16* values, const u32* table, const Shape& shape,
                                         u32 kv_head, u32 first_key, u32 num_keys, u8* shared)
        : keys(keys), values(values), table(table), shape(shape), kv_head(kv_head), first_key(first_key),
          num_keys(num_keys), first_unit(first_key / UNIT), num_units((num_keys + UNIT - 1) / UNIT),
          buffers((bf16*)shared) {
        now = entries(first_unit / CHUNK_UNITS);
        next = entries(first_unit / CHUNK_UNITS + 1);
        fetch(first_unit);
    }
    __device__ __forceinline__ u32 entries(u32 chunk) const {
        const u32 block = chunk * (ATTENTION_CHUNK / KV_BLOCK) + threadIdx.x % WARP;
        return block * KV_BLOCK < num_keys ? table[block] : 0;
    }
    /// Each warp fetches a part of one block.
    __device__ __forceinline__ void fetch(u32 unit) {
        const u32 SHARE = UNIT / WARPS, first = threadIdx.x / WARP * SHARE, key = unit * UNIT + first;
        if (unit % CHUNK_UNITS == 0 && unit > first_unit) {
            now = next;
            next = entries(unit / CHUNK_UNITS + 1);
        }
        u32 entry = __shfl_sync(ALL_LANES, now, (unit * UNIT + first) % ATTENTION_CHUNK / KV_BLOCK);
        u32 valid = key < num_keys && key + SHARE > first_key ? num_keys - key : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
        const u64 from = (shape.block(entry, kv_head) * KV_BLOCK + first % KV_BLOCK) * D;
        bf16* to = buffers + unit % 2 * BUFFER;
        fetch_rows<D, UNIT / WARPS, PANELS>(to, first, keys + from, valid);
        fetch_rows<D, UNIT / WARPS, PANELS>(to + UNIT * D, first, values + from, valid);
        copy_async_commit();
    }
    /// Waits for a unit, and fetches the next one. All threads of the block call it for every unit.
    __device__ __forceinline__ void arrive(u32 unit) {
        copy_async_wait<0>();
        if (PANELS) copied();
        __syncthreads();
        if (unit + 1 < num_units) fetch(unit + 1);
    }
    __device__ __forceinline__ const bf16* keys_of(u32 unit) const { return buffers + unit % 2 * BUFFER; }
    __device__ __forceinline__ const bf16* values_of(u32 unit) const { return keys_of(unit) + UNIT * D; }
};

#define ATTENTION_SHAPE \
    u32 rows, u32 num_segments, u32 table_entries, u32 blocks, u32 max_keys, u32 heads, u32 kv_heads, u32 window,    \
        u32 whole
#define SHAPE \
    Shape { rows, num_segments, table_entries, blocks, max_keys, heads, kv_heads, window, whole }

// ---- the plain kernels: any multiple of 16 up to 576 ----------------------------------------------------------------

/// Elements of a head that a warp's lanes hold in eights; a head has up to EIGHTS such groups.
#define PLAIN_WIDTH (8 * WARP)
/// Eights of a lane for heads of up to 256 elements, and up to 576.
#define NARROW 1
#define PLAIN_WIDE 3

/// Element of the head that is a lane's i-th.
__device__ __forceinline__ u32 plain_at(u32 i) { return i / 8 * PLAIN_WIDTH + threadIdx.x % WARP * 8 + i % 8; }

/// A lane's eights of a row of d; zeros beyond it.
template <int EIGHTS, class T>
__device__ __forceinline__ void read_eights(float (&to)[8 * EIGHTS], const T* from, u32 d) {
#pragma unroll
    for (u32 i = 0; i < EIGHTS; i++) {
        float eight[8] = {};
        if (plain_at(8 * i) < d) load8(from + plain_at(8 * i), eight);
#pragma unroll
        for (u32 j = 0; j < 8; j++) to[8 * i + j] = eight[j];
    }
}

/// Every 32nd element of a row of d; zeros beyond it.
template <int EIGHTS, class T>
__device__ __forceinline__ void read_part(float (&to)[8 * EIGHTS], const T* from, u32 d) {
#pragma unroll
    for (u32 i = 0; i < 8 * EIGHTS; i++) {
        u32 at = threadIdx.x % WARP + i * WARP;
        to[i] = at < d ? to_f32(from[at]) : 0.0f;
    }
}

/// x . y, in ascending order.
template <class T, class U> __device__ __forceinline__ float plain_dot(const T* x, const U* y, u32 d) {
    float sum = 0.0f;
#pragma unroll 2
    for (u32 i = 0; i < d; i += 8) {
        float a[8], b[8];
        load8(x + i, a);
        load8(y + i, b);
#pragma unroll
        for (u32 j = 0; j < 8; j++) sum = fma(a[j], b[j], sum);
    }
    return sum;
}
