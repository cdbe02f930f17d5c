//! Instruction paths: the vector instructions that kernels use. The path is part of a run's fingerprint, because the
//! rounding of a product depends on it. A path that the machine does not have is refused.

use plimsoll_base::{Error, Result};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::OnceLock;

/// The instructions that kernels are built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Tiles of bf16 in matrix registers; everything else as `Avx512Bf16`.
    Amx,
    /// 512-bit vectors with the bf16 dot product.
    Avx512Bf16,
    /// 256-bit vectors with fused multiply-add; bf16 is widened in registers.
    Avx2,
    Scalar,
}

impl Isa {
    /// All paths, fastest first.
    pub const ALL: [Isa; 4] = [Isa::Amx, Isa::Avx512Bf16, Isa::Avx2, Isa::Scalar];

    /// Returns the fastest path that the machine has.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Returns the path that `PLIMSOLL_ISA` names, or the fastest one where it is unset or empty.
    ///
    /// Errors: those of `parse`.
    pub fn chosen() -> Result<Isa> {
        let name = std::env::var("PLIMSOLL_ISA").unwrap_or_default();
        if name.is_empty() { Ok(Isa::detect()) } else { Isa::parse(&name) }
    }

    /// Returns the path in use; a wrong `PLIMSOLL_ISA` is refused where a device is opened or probed.
    pub fn in_use() -> Isa {
        Isa::chosen().unwrap_or_else(|_| Isa::detect())
    }

    /// Returns the path with that name.
    ///
    /// Errors: `unknown-isa` for another name, `isa-unavailable` where the machine lacks the instructions.
    pub fn parse(name: &str) -> Result<Isa> {
        let Some(isa) = Isa::ALL.into_iter().find(|isa| isa.name() == name) else {
            let message =
                format!("instruction path `{name}`: the paths are amx, avx512bf16, avx2 and scalar");
            return Err(
                Error::usage("unknown-isa", message).hint("leave PLIMSOLL_ISA unset to detect the path")
            );
        };
        if !isa.is_available() {
            let message =
                format!("instruction path `{name}`: this machine has `{}` at most", Isa::detect().name());
            return Err(
                Error::usage("isa-unavailable", message).hint("unset PLIMSOLL_ISA to detect the path")
            );
        }
        Ok(isa)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Isa::Amx => "amx",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Avx2 => "avx2",
            Isa::Scalar => "scalar",
        }
    }

    /// True if the machine has the instructions.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Amx => Isa::Avx512Bf16.is_available() && has_tiles(),
            Isa::Avx512Bf16 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bf16")
                    && Isa::Avx2.is_available()
            }
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Isa::Scalar => true,
        }
    }

    /// True if the machine has the instructions.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Isa::Scalar
    }
}

/// True if the machine has tiles of bf16, and the kernel lets this process use them: it asks once.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    // CPUID 7.0 EDX: AMX-BF16 and AMX-TILE. XCR0: the configuration of tiles and their data.
    const FEATURES: u32 = 1 << 22 | 1 << 24;
    const STATES: u64 = 1 << 17 | 1 << 18;
    static HAS_TILES: OnceLock<bool> = OnceLock::new();

    *HAS_TILES.get_or_init(|| {
        if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & FEATURES != FEATURES {
            return false;
        }
        // SAFETY: a machine with AVX-512, which callers test first, has XGETBV.
        if unsafe { _xgetbv(0) } & STATES != STATES {
            return false;
        }
        allows_tiles()
    })
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_tiles() -> bool {
    false
}

/// Asks Linux for room for the tiles' data in the saved state of all threads of this process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn allows_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call that takes two numbers and touches no memory of the program; it changes rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_where_the_machine_has_the_path() {
        for isa in Isa::ALL {
            match Isa::parse(isa.name()) {
                Ok(parsed) => assert_eq!(parsed, isa),
                Err(error) => assert!(error.slug == "isa-unavailable" && !isa.is_available(), "{error}"),
            }
        }
        assert_eq!(Isa::parse("neon").unwrap_err().slug, "unknown-isa");
        assert!(Isa::detect().is_available());
    }
}
