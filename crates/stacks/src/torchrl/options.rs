//! Arguments of TorchRL's collectors, and keys of their YAML. They are not imported.

use crate::table::Table;

pub(super) static TABLE: Table = Table {
    stack: "torchrl",
    rows: &[],
    alike: &[],
    used: "
        collector create_env_fn num_workers|collector.num_workers|num_collectors|collector.num_collectors
        device|collector.device storing_device|collector.storing_device env_device|collector.env_device
        policy_device|collector.policy_device parallel_env parallel_env.num_workers|env.num_envs|num_envs
        parallel_env.device
    ",
    idle: "
        cat_results collector.* compile.* compile_policy create_env_kwargs cudagraph_policy env.* exploration_type
        extend_buffer frames_per_batch init_random_frames interruptor logger.* loss.* max_frames_per_traj model.*
        network.* no_cuda_sync num_sub_threads num_threads optim.* parallel_env.* policy policy_factory postproc
        preemptive_threshold replay_buffer replay_buffer.* reset_at_each_iter reset_when_done return_same_td seed
        set_truncated split_trajs total_frames trust_policy update_at_each_batch use_buffers weight_updater
        worker_idx
    ",
    elsewhere: &[],
    secrets: "",
};
