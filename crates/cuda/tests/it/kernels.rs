//! Every kernel compiles for every architecture, on a machine without a GPU. Needs NVRTC, which
//! `pip install nvidia-cuda-nvrtc` brings; without it the test says so and passes, unless PLIMSOLL_NVRTC=1 asks for it.

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
    let jobs: Vec<_> = SOURCES
        .iter()
        .flat_map(|source| {
            let checked = std::iter::once((source, "sm_90a", true));
            known.iter().map(move |&arch| (source, arch, false)).chain(checked)
        })
        .collect();
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
