//! The constants of an AdamW update: computed once on the host, the same for every device.

use crate::AdamW;
use plimsoll_base::math;

/// The update's constants, in f32.
#[derive(Clone, Copy)]
pub struct Update {
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    /// 1 - lr decay.
    pub keep: f32,
    /// lr / (1 - beta1^t).
    pub rate: f32,
    /// 1 / (1 - beta2^t).
    pub correction2: f32,
    pub grad_scale: f32,
    pub keys: [u32; 2],
    pub first_element: u64,
}

impl Update {
    pub fn new(how: AdamW) -> Update {
        let correction = |beta: f32| 1.0 - math::pow(f64::from(beta), how.step as f64);
        let key = splitmix(splitmix(how.seed) ^ how.step);
        Update {
            beta1: how.beta1,
            beta2: how.beta2,
            eps: how.eps,
            keep: (1.0 - f64::from(how.lr) * f64::from(how.weight_decay)) as f32,
            rate: (f64::from(how.lr) / correction(how.beta1)) as f32,
            correction2: (1.0 / correction(how.beta2)) as f32,
            grad_scale: how.grad_scale,
            keys: [key as u32, (key >> 32) as u32],
            first_element: how.first_element,
        }
    }
}

/// The finaliser of SplitMix64.
fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
