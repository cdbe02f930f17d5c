//! The plan of a whole run: what `"auto"` becomes, whether it fits, and which changes would make it fit.

mod axes;
pub mod carry;
mod cost;
pub mod devices;
mod disk;
mod drafts;
mod duration;
mod engine;
mod evaluations;
mod facts;
pub mod grid;
mod hints;
mod hosts;
mod limits;
mod lora;
pub mod measured;
pub mod picture;
mod planner;
mod planning;
mod prices;
mod regions;
pub mod render;
pub mod rent;
mod report;
mod role_name;
mod roles;
mod search;
mod shape;
mod sight;
mod sight_regions;
mod step_arrays;
pub mod svg;
mod tables;
mod teacher;
mod tenants;
mod work;

pub use cost::{StepCost, least_optimizer_bytes};
pub use disk::checkpoint_bytes;
pub use duration::duration;
pub use evaluations::Evaluations;
pub use facts::{
    DiskFacts, Facts, HostFacts, SAMPLES_KEPT, TenantPasses, disk_facts, environments_image_bytes,
    image_bytes, rows_kept, samples_kept, staging_bytes, tokenizer_bytes, trained_rows_kept,
};
pub use hosts::Hosts;
pub use limits::{limits_of, machine_limits, parse_limits};
pub use lora::{CriticAdapter, Lora};
pub use planning::{
    check_lengths, check_positions, longest_sequence, plan_sampling, plan_with, predict_step,
    smallest_limits, threads_without_cores,
};
pub use plimsoll_train::Share;
pub use prices::Prices;
pub use regions::{LOAD_LINE_KINDS, kernel_bytes, kernel_row, process_rows, process_rows_of, training_rows};
pub use render::{pool_lines, pools_json, region_lines};
pub use report::{AutoReport, Hint, PlanReport, Resolved, Setting, SmallestLimits};
pub use role_name::{PerRole, RoleName};
pub use roles::{PassShape, RoleShape, UpdateShape, WeightsAre, trained_slot};
pub use shape::{Offload, RunShape, Training};
pub use sight::{DECODERS, SightShape};
pub use sight_regions::TEACHER_SEES;
pub use step_arrays::{
    KEPT_PIECE_BYTES, KeptRows, Lists, StepArrays, StepPart, aligned_bytes, aligned_text_bytes,
};
pub use teacher::{TeacherRows, TeacherShape};
