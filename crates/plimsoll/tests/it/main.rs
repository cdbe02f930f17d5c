//! The command line from outside, in one test binary, which links once. `docs` is a separate target because it takes
//! minutes.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../files/tests/it/common.rs"]
mod made;
mod run;

mod agent;
mod agent_python;
mod agents;
mod attacks;
mod collect;
mod collect_policy;
mod collect_python;
mod command_line;
mod data;
mod distill;
mod doctor;
mod doctor_run;
mod founding;
mod functions;
mod gguf;
mod gguf_base;
mod grade;
mod hostile;
mod hub_data;
mod hub_rows;
mod import;
mod import_scripts;
mod init;
mod load_line;
mod lora;
mod lora_forms;
mod lora_scores;
mod methods;
mod outputs;
mod pairs;
mod plan_checks;
mod planning;
mod ppo;
mod push;
mod rank_faults;
mod ranks;
mod ranks_episodes;
mod resume;
mod reward_models;
mod rewards;
mod run_files;
mod serve;
mod short_forms;
mod silence;
mod supervisor;
mod track;
mod training;
mod turns;
mod watch;
