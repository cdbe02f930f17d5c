//! One decoder for training and rollout: weights, forward, backward, head.
