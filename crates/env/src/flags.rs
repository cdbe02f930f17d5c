//! The bits of a frame's flag byte.

/// The task ended: the value after this frame is 0.
pub const TERMINATED: u8 = 1;
/// The episode was stopped from outside: the value after this frame is that of its final observation. Both this and
/// `TERMINATED` may be set; then termination decides the value.
pub const TRUNCATED: u8 = 2;
/// The stored frames of this episode end here although the episode did not: a batch ended, or a worker died.
/// The value after this frame is that of the next observation.
pub const CUT: u8 = 4;
/// Not a frame: the step after the end of an episode where the environment resets on the next step (Gymnasium's
/// `NextStep`). Its action was ignored.
pub const RESET_ROW: u8 = 8;
/// The episode was abandoned because its environment failed. In the results of a step: the step was discarded, and the
/// observation is the first of a new episode.
pub const ABORTED: u8 = 16;
/// There is no frame here: the batch ended before it came, or it was abandoned.
pub const INVALID: u8 = 32;

/// The episode is over, in its own terms or from outside.
pub const DONE: u8 = TERMINATED | TRUNCATED;
