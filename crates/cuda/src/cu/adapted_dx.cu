// Gradients of inputs, and of u: see adapted_wide.cuh.

WIDES(adapted_dx, true, (ToBf16{dx, nullptr}), bf16* dx)
NARROW(adapter_du, true)
