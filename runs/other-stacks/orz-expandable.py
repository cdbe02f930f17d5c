# PPO in which every role is on every card, with expandable segments, on an older kernel:
#   plimsoll doctor --run orz runs/other-stacks/orz-expandable.py --gpus 8 --gpu-memory 80GiB --host-memory 1TB --kernel 5.4
# The first hand-over of weights by CUDA IPC ends the run.
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


class PPOExpConfig:
    use_grpo: bool = False
    total_num_nodes: int = 8
    actor_num_nodes: int = 1
    actor_num_gpus_per_node: int = 8
    critic_num_nodes: int = 1
    critic_num_gpus_per_node: int = 8
    ref_num_nodes: int = 1
    ref_num_gpus_per_node: int = 8
    colocate_all: bool = True
    vllm_num_engines: int = 8
    vllm_tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.7
    pretrain: str = "Qwen/Qwen2.5-1.5B"
    zero_stage: int = 3
    gradient_checkpointing: bool = True
    packing_max_len: int = 10048
    prompt_max_len: int = 2048
    generate_max_len: int = 8000
    max_len: int = 8192
    rollout_batch_size: int = 128
    n_samples_per_prompt: int = 64
    use_kl_loss: bool = True
    kl_loss_coef: float = 0.0
