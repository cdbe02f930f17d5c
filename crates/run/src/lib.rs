//! Everything around the training of a run: its directory (`run_dir`), checkpoints as files, events, the load line, the
//! report, and the supervisor's verdict on a trainer that died. It knows no tensors and no environments.

mod build;
pub mod callback;
pub mod carry;
pub mod checkpoint;
pub mod ending;
pub mod events;
pub mod lead;
pub mod limits;
pub mod linked;
pub mod load_line;
pub mod metrics;
pub mod opening;
pub mod progress;
mod replace;
pub mod report;
pub mod resume;
pub mod run_dir;
pub mod scores;
mod sent;
pub mod several;
pub mod shareable;
mod stall;
pub mod status;
pub mod supervise;
pub mod track;
pub mod under_way;
mod views;
pub mod vitals;
pub mod withheld;
