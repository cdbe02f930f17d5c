//! Verifiers and reward functions.
