//! Every kernel compiles for every architecture, on a machine without a GPU. Needs NVRTC, which
//! `pip install nvidia-cuda-nvrtc` brings; without it the test says so and passes, unless PLIMSOLL_NVRTC=1 asks for it.
//! A file is compiled for `sm_90a` with every other commit, else for one of the others, in turn (PLIMSOLL_TURN); for
//! all, and with checks, under PLIMSOLL_FULL=1.

use plimsoll_cuda::{ARCHITECTURES, SOURCES, check_architecture, compile};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if let Err(error) = check_architecture(ARCHITECTURES[0])
        && error.slug == "cuda-library-missing"
    {
        assert!(std::env::var_os("PLIMSOLL_NVRTC").is_none(), "{error}");
        return eprintln!("skipped: {error}");
    }
    // NVRTC before 12.8 knows no Blackwell, and says so.
    let (known, newer): (Vec<&str>, Vec<&str>) =
        ARCHITECTURES.into_iter().partition(|arch| check_architecture(arch).is_ok());
    assert!(known.contains(&"sm_90a"), "{known:?}");
    for arch in newer {
        let error = check_architecture(arch).unwrap_err();
        assert_eq!(error.slug, "cuda-compile-failed");
        assert!(error.message.ends_with(arch), "{error}");
    }
    let is_full = std::env::var("PLIMSOLL_FULL").is_ok_and(|value| value == "1");
    let turn: usize = std::env::var("PLIMSOLL_TURN").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    let others: Vec<&str> = known.iter().copied().filter(|arch| *arch != "sm_90a").collect();
    let mut jobs = Vec::new();
    for (index, source) in SOURCES.iter().enumerate() {
        let is_hopper = (index + turn).is_multiple_of(2) || others.is_empty();
        let in_turn = (!is_hopper).then(|| (index + turn / 2) % others.len());
        let chosen = others.iter().enumerate().filter(|(at, _)| is_full || Some(*at) == in_turn);
        jobs.extend((is_full || is_hopper).then_some((source, "sm_90a", false)));
        jobs.extend(chosen.map(|(_, arch)| (source, *arch, false)));
        jobs.extend(is_full.then_some((source, "sm_90a", true)));
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(source, arch, checked)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let image = compile(source, arch, checked).unwrap_or_else(|error| panic!("{error}"));
                    assert!(image.starts_with(b"\x7fELF"), "{} for {arch}", source.name);
                }
            });
        }
    });
    println!("{} kernel files, {} images for {known:?}", SOURCES.len(), jobs.len());
}
