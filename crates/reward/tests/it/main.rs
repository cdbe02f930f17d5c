//! Rewards as a run uses them: the `math` verifier's cases, and functions, programs and servers.

mod code;
mod external;
mod math;
