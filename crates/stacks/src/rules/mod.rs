//! Rules that several stacks share: what PyTorch, DeepSpeed and vLLM hold, in every framework.

pub(crate) mod deepspeed;
pub(crate) mod torch;
pub(crate) mod vllm;
