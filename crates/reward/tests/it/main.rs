//! Rewards as a run uses them: the `math` verifier's cases, functions, programs, servers and judges.

mod code;
mod external;
mod grade;
mod images;
mod judge;
mod math;
