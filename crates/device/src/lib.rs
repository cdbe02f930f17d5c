//! The Device trait, about 25 operations of the decoder family, and its CPU implementation.
