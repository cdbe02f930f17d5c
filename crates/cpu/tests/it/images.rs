//! Operations for rows of images: bits that threads do not change.

use crate::both::images::{Norms, Turned, images, run_gelu, scattered};
use crate::both::{Rig, Sized, bits, normal, paths};
use plimsoll_arch::{Gelu, RopeAxes};
use plimsoll_base::DType::F32;

fn check(buffers: &[Sized<'_>], run: impl Fn(&Rig) -> Vec<Vec<f32>>) {
    for isa in paths() {
        let of = |threads| run(&Rig::new(isa, threads, buffers)).iter().map(|x| bits(x)).collect::<Vec<_>>();
        assert!(of(1) == of(3), "{isa:?}: bits depend on threads");
    }
}

#[test]
fn threads_change_no_bit_of_operations_on_rows_of_images() {
    let norms = Norms { h: 72, rows: 67, e: F32 };
    check(&norms.buffers(), |rig| norms.run(rig).to_vec());
    let n = 10_007;
    let (x, dy) = (normal(1, n, 3.0, F32), normal(2, n, 1.0, F32));
    let buffers = ["x", "y", "dy", "dx"].map(|name| (name, F32, n));
    check(&buffers, |rig| run_gelu(Gelu::Erf, rig, &x, &dy).to_vec());
    let images = images(70, 2, 1, 16, F32);
    check(&images.buffers(), |rig| images.run(rig).to_vec());
    let turned = Turned { d: 16, width: 16, axes: RopeAxes::Woven([4, 2, 2]), norms: None };
    check(&turned.buffers(), |rig| {
        turned.fill(rig);
        turned.run(rig, &[0; 21], Some(&scattered())).to_vec()
    });
}
