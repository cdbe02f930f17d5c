//! Memory decided before the run: layouts, the plan, the arena's bookkeeping, and what the host allows.
