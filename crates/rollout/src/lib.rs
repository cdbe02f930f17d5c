//! The rollout engine: paged KV cache, scheduler, sampler.
