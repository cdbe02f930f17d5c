// Outputs in bf16, and u: see adapted_wide.cuh.

WIDES(adapted_bf16, false, (ToBf16{out, bias}), const bf16* bias, bf16* out)
NARROW(adapter_u, false)
