//! Host readings.
