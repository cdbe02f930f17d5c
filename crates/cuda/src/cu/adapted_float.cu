// Outputs in f32: see adapted_wide.cuh.

WIDES(adapted_float, false, (ToF32{out, added}), const float* added, float* out)
