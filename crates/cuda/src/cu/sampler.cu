// The truncating sampler: top-k, then top-p of the rest, then min-p, then one draw; one block per row.
//
// All logits of a row are in memory, and are read several times. Thresholds are found digit by digit from histograms
// of integers, which come out the same in whatever order atomics add: counts of logits for top-k; for top-p counts of
// masses and sums of their mantissas, which together are the mass of a bin.

#define THREADS 1024
#define WARPS (THREADS / WARP)
/// Two bins a thread; no digit has more than 11 bits.
#define BINS (2 * THREADS)

/// Shared memory of a block.
struct Scratch {
    u32 counts[BINS];
    u32 middles[BINS]; // sums of bits 10..20
    u32 lows[BINS];    // sums of bits 0..10
    double warps[WARPS + 1];
    double rest;
    u32 first, last;
    float largest[WARPS];

    __device__ __forceinline__ void clear() {
        __syncthreads();
        for (u32 i = threadIdx.x; i < BINS; i += THREADS) counts[i] = middles[i] = lows[i] = 0;
        __syncthreads();
    }
};

/// A row's scaled logits, stored in tiles of `tile` columns: each is [rows, columns], unscaled, one after the other.
struct Logits {
    const float* all;
    u32 vocab, tile;
    float inv_t;
    bool wide;

    /// `tile`: a multiple of 4 x THREADS, so that the ids of a thread do not depend on it.
    __device__ __forceinline__ Logits(const float* all, u32 vocab, u32 tile, float inv_t)
        : all(all), vocab(vocab), tile(tile), inv_t(inv_t), wide(((u64)all | (u64)vocab * 4) % 16 == 0) {}

    /// The row's part of the tile that begins at `first`.
    __device__ __forceinline__ const float* part(u32 first) const {
        return all + (u64)first * gridDim.x + (u64)blockIdx.x * min(tile, vocab - first);
    }

    /// Calls f(id, logit) for the thread's own ids: four in a row of every 4 x THREADS.
    template <class F> __device__ __forceinline__ void each(F f) const {
        for (u32 first = 0; first < vocab; first += tile) {
            const float* x = part(first);
            u32 cols = min(tile, vocab - first);
            if (wide) {
#pragma unroll 2
                for (u32 at = threadIdx.x * 4; at < cols; at += THREADS * 4) {
                    float4 v = *(const float4*)(x + at);
                    f(first + at, v.x * inv_t);
                    f(first + at + 1, v.y * inv_t);
                    f(first + at + 2, v.z * inv_t);
                    f(first + at + 3, v.w * inv_t);
                }
            } else {
                for (u32 at = threadIdx.x * 4; at < cols; at += at % 4 == 3 ? THREADS * 4 - 3 : 1) f(first + at, x[at] * inv_t);
            }
        }
    }

    /// The `n`th id of `thread`; ids ascend.
    __device__ __forceinline__ u32 id_of(u32 thread, u32 n) const { return (n / 4 * THREADS + thread) * 4 + n % 4; }

    __device__ __forceinline__ float logit(u32 id) const { return part(id / tile * tile)[id % tile] * inv_t; }
};

/// The place at which a running sum reaches an amount.
struct Reached {
    u32 place;   // 2 thread, or 2 thread + 1
    double rest; // what of the amount is left before that place
};

/// The first place at which the running sum of two values a thread, none negative, reaches `amount`, or that share of
/// the whole. Every thread gets it.
__device__ __forceinline__ Reached reach(Scratch& s, double a, double b, double amount, bool of_whole) {
    u32 warp = threadIdx.x / WARP;
    double through = warp_scan(a + b);
    if (threadIdx.x % WARP == WARP - 1) s.warps[warp + 1] = through;
    if (threadIdx.x == 0) {
        s.warps[0] = 0.0;
        s.first = BINS;
        s.last = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < WARPS; i++) s.warps[i + 1] += s.warps[i];
    }
    __syncthreads();
    if (of_whole) amount *= s.warps[WARPS];
    through += s.warps[warp];
    double before = through - (a + b);
    if (a + b > 0.0) {
        bool is_a = a > 0.0 && (before + a >= amount || b == 0.0);
        if (through >= amount) atomicMin(&s.first, 2 * threadIdx.x + (is_a ? 0 : 1));
        // Rounding may let no sum reach the amount: then it is the last place that has something.
        atomicMax(&s.last, 2 * threadIdx.x + (b > 0.0 ? 1 : 0));
    }
    __syncthreads();
    u32 place = s.first < BINS ? s.first : s.last;
    if (place / 2 == threadIdx.x) s.rest = amount - (place % 2 == 0 ? before : before + a);
    __syncthreads();
    return Reached{place, s.rest};
}

/// The `k`th largest key of those that key(id, logit, to) gives: it returns false for what has none.
template <class KEY> __device__ __forceinline__ u32 kth_largest(Scratch& s, const Logits& x, u32 k, KEY key) {
    u32 found = 0;
    double wanted = (double)k;
    // Digits of 11, 11 and 10 bits.
    for (u32 level = 0; level < 3; level++) {
        u32 shift = level == 0 ? 21 : level == 1 ? 10 : 0, bits = level == 2 ? 10 : 11;
        s.clear();
        x.each([&](u32 id, float logit) {
            u32 mine = 0;
            if (!key(id, logit, mine)) return;
            if (level == 0 || mine >> (shift + bits) == found) atomicAdd(&s.counts[mine >> shift & ((1u << bits) - 1)], 1u);
        });
        __syncthreads();
        // Bins from the largest digit down.
        u32 bin = BINS - 1 - 2 * threadIdx.x;
        Reached at = reach(s, (double)s.counts[bin], (double)s.counts[bin - 1], wanted, false);
        wanted = at.rest;
        found = found << bits | (BINS - 1 - at.place);
    }
    return found;
}

/// Keys ordered as the values are.
__device__ __forceinline__ u32 ordered(float x) {
    u32 bits = as_u32(x);
    return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float from_ordered(u32 key) {
    return as_f32(key >> 31 ? key & 0x7fffffffu : ~key);
}

/// Thresholds of what is kept of a row.
struct Kept {
    float max;
    float smallest_logit; // by top-k
    float smallest_mass;  // by top-p; of those equal to it, only ids up to `last_id`
    u32 last_id;
    float min_p;

    /// exp(x - max) of what top-k keeps.
    __device__ __forceinline__ float top_k(float logit) const {
        return logit < smallest_logit ? 0.0f : exp_f32(logit - max);
    }

    __device__ __forceinline__ float mass(u32 id, float logit) const {
        float m = top_k(logit);
        bool keep = m > smallest_mass || (m == smallest_mass && id <= last_id);
        return keep && m >= min_p ? m : 0.0f;
    }
};

/// Mass of bin `low_bits >> shift`, from the number of its masses and the sum of their bits below `shift`.
__device__ __forceinline__ double bin_mass(u32 low_bits, u32 count, u32 middles, u32 lows) {
    if (count == 0) return 0.0;
    u32 exponent = max(low_bits >> 23, 1u);
    double unit = __longlong_as_double((long long)(exponent + 1023 - 150) << 52); // of the mantissa's last bit
    return (double)count * (double)as_f32(low_bits) + ((double)middles * 1024.0 + (double)lows) * unit;
}

/// Keeps the smallest set of masses that reaches `share` of the whole; of equal ones those of the lowest ids.
__device__ __forceinline__ void keep_mass(Scratch& s, const Logits& x, float share, Kept& kept) {
    u32 found = 0, equal = 0;
    double wanted = (double)fmaxf(share, 1.17549435e-38f);
    // Masses are positive: their bits are ordered as they are. Digits of 11, 10 and 10 bits.
    for (u32 level = 0; level < 3; level++) {
        u32 shift = 20 - 10 * level, bits = level == 0 ? 11 : 10;
        s.clear();
        x.each([&](u32, float logit) {
            u32 mine = as_u32(kept.top_k(logit));
            if (mine == 0 || (level > 0 && mine >> (shift + bits) != found)) return;
            u32 bin = mine >> shift & ((1u << bits) - 1);
            atomicAdd(&s.counts[bin], 1u);
            if (level == 0) atomicAdd(&s.middles[bin], mine >> 10 & 1023);
            if (level < 2) atomicAdd(&s.lows[bin], mine & 1023);
        });
        __syncthreads();
        u32 bin = BINS - 1 - 2 * threadIdx.x;
        double a = bin_mass((found << bits | bin) << shift, s.counts[bin], s.middles[bin], s.lows[bin]);
        double b = bin_mass((found << bits | (bin - 1)) << shift, s.counts[bin - 1], s.middles[bin - 1], s.lows[bin - 1]);
        Reached at = reach(s, a, b, wanted, level == 0);
        wanted = at.rest;
        found = found << bits | (BINS - 1 - at.place);
        equal = s.counts[BINS - 1 - at.place];
    }
    kept.smallest_mass = as_f32(found);
    double ties = ceil(wanted / (double)kept.smallest_mass);
    if (ties >= (double)equal) return;
    // The ids of the first are the largest of the complements.
    float tied = kept.smallest_mass;
    kept.last_id = ~kth_largest(s, x, ties > 1.0 ? (u32)ties : 1, [&](u32 id, float logit, u32& key) {
        key = ~id;
        return kept.top_k(logit) == tied;
    });
}

/// The largest logit; NaN if the row is not finite.
__device__ __forceinline__ float largest(Scratch& s, const Logits& x) {
    float max = as_f32(0xff800000u);
    int bad = 0;
    x.each([&](u32, float logit) {
        max = fmaxf(max, logit);
        bad |= logit != logit;
    });
    max = warp_max(max);
    if (threadIdx.x % WARP == 0) s.largest[threadIdx.x / WARP] = max;
    bad = __syncthreads_or(bad);
    max = warp_max(s.largest[threadIdx.x % WARP]);
    return bad || max - max != 0.0f ? as_f32(0x7fc00000u) : max;
}

/// Draws by the masses that were kept; warp 0 has the token.
__device__ __forceinline__ u32 draw(Scratch& s, const Logits& x, const Kept& kept, double uniform) {
    double mine = 0.0;
    x.each([&](u32 id, float logit) { mine += (double)kept.mass(id, logit); });
    Reached at = reach(s, mine, 0.0, uniform, true);
    if (threadIdx.x >= WARP) return 0;
    // The warp goes through the ids of the thread at that place.
    u32 thread = at.place / 2, token = 0;
    double before = 0.0;
    for (u32 n = 0; x.id_of(thread, n) < x.vocab; n += WARP) {
        u32 id = x.id_of(thread, n + threadIdx.x);
        double mass = id < x.vocab ? (double)kept.mass(id, x.logit(id)) : 0.0;
        double through = before + warp_scan(mass);
        u32 heavy = __ballot_sync(ALL_LANES, mass > 0.0), beyond = __ballot_sync(ALL_LANES, through >= at.rest) & heavy;
        if (beyond != 0) return x.id_of(thread, n + (u32)__ffs((int)beyond) - 1);
        if (heavy != 0) token = x.id_of(thread, n + 31 - (u32)__clz((int)heavy));
        before = __shfl_sync(ALL_LANES, through, WARP - 1);
    }
    return token;
}

/// logits: f32 as `Logits` says; keys: [rows, KEY_WORDS]; tokens: [rows], written:
/// 0xffffffff where a row is not finite. `k`: 0 for all.
extern "C" __global__ void __launch_bounds__(THREADS)
draw_truncated(const float* __restrict__ logits, u32 vocab, u32 tile, float inv_t, const u32* __restrict__ keys,
               u32 k, float p, float min_p, u32* tokens) {
    begin();
    __shared__ Scratch s;
    Logits x(logits, vocab, tile, inv_t);
    Kept kept{largest(s, x), as_f32(0xff800000u), 0.0f, 0xffffffffu, min_p};
    if (kept.max != kept.max) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = 0xffffffffu;
        return;
    }
    if (k > 0 && k < vocab) {
        kept.smallest_logit = from_ordered(kth_largest(s, x, k, [](u32, float logit, u32& key) {
            key = ordered(logit);
            return true;
        }));
    }
    if (p < 1.0f) keep_mass(s, x, p, kept);
    const u32* key = keys + (u64)blockIdx.x * KEY_WORDS;
    uint4 numbers = philox((u64)key[4] << 32 | key[3], STREAM_SAMPLER, (u64)key[1] << 32 | key[0], key[2]);
    u32 token = draw(s, x, kept, unit_f64(numbers.x, numbers.y));
    if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}
