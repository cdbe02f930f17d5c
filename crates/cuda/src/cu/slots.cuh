// Rows that an operation with adapters computes: all, or those of one slot.

/// `of_row`: the slot of each row, or null for all rows; `scales`: the factor of each slot.
struct RowsOfSlot {
    const u32* of_row;
    const float* scales;
    u32 slot;

    __device__ __forceinline__ bool has(u32 row) const { return !of_row || of_row[row] == slot; }
    /// The slot's factor, or `own`.
    __device__ __forceinline__ float scale(float own) const { return scales ? scales[slot] : own; }
};

#define OF_SLOT const u32 *of_row, const float *slot_scales, u32 slot
#define ROWS_OF_SLOT (RowsOfSlot{of_row, slot_scales, slot})
