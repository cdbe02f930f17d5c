//! Rules shared by several stacks: memory of PyTorch, DeepSpeed and vLLM in any framework.

pub(crate) mod deepspeed;
pub(crate) mod torch;
pub(crate) mod vllm;
