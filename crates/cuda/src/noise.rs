//! Launcher of `noise.cu`: noise on the sampler's rows, see `SamplerNoise`.

use super::rows::typed;
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_device::SamplerNoise;
use plimsoll_memory::Buf;

/// Puts noise on `rows` rows where they are, if there is some: after a draw nothing reads the rows again.
///
/// `keys`: [R, 3] u32: sample id (low, high) and position.
pub(crate) fn put_on(dev: &CudaDevice, x: Buf<'_>, rows: usize, keys: Buf<'_>) {
    let noise = *dev.noise.lock().unwrap_or_else(|e| e.into_inner());
    let k = count(x.len() / rows);
    let (kernel, args) = match noise {
        None => return,
        Some(SamplerNoise::Normal { sigma, share, seed }) => {
            let how = [Arg::F32(sigma), Arg::F32(share), Arg::U64(seed)];
            (typed!("blur", x), [vec![dev.arg(x), dev.arg(keys), k], how.to_vec()].concat())
        }
        Some(SamplerNoise::EightBits) => (typed!("round", x), vec![dev.arg(x), k]),
    };
    dev.launch("noise", kernel, Launch { grid: [rows as u32, 1, 1], block: 256, shared: 0 }, &args);
}
