// Prepares the next decode pass without the host.

/// Row i is segment i: the token drawn becomes the input, everything else moves on by one position. `window_tables` and
/// `window_slots` are those of a second cache, or null.
extern "C" __global__ void advance(const u32* tokens, const u32* tables, u32* ids, u32* positions, u32* slots,
                                   u32* segments, u32* keys, u32 rows, u32 table_entries, const u32* window_tables,
                                   u32* window_slots) {
    begin();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    u32* segment = segments + (u64)i * SEGMENT_FIELDS;
    u32 position = positions[i] + 1;
    u32 entry = segment[3] + position / KV_BLOCK;
    if (!index_ok(BAD_SEGMENT, entry, table_entries)) return;
    ids[i] = tokens[i];
    positions[i] = position;
    segment[2] = position;
    slots[i] = tables[entry] * KV_BLOCK + position % KV_BLOCK;
    if (window_slots) window_slots[i] = window_tables[entry] * KV_BLOCK + position % KV_BLOCK;
    keys[KEY_WORDS * i + 2] += 1;
}
