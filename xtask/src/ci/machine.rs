//! Names this machine by what decides how long tests take: the instruction path, the processor and its cores.

use std::fs;

/// Instruction paths of the `cpu` crate, best first, and the flags of `/proc/cpuinfo` that each needs.
const PATHS: [(&str, &[&str]); 3] = [
    (
        "amx",
        &[
            "amx_tile",
            "amx_bf16",
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512dq",
            "avx512_bf16",
            "avx2",
            "fma",
        ],
    ),
    ("avx512bf16", &["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx2", "fma"]),
    ("avx2", &["avx2", "fma"]),
];

/// Describes this machine; a path that `PLIMSOLL_ISA` names is that of the run.
pub fn describe() -> String {
    let path = std::env::var("PLIMSOLL_ISA").unwrap_or_default();
    of(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default(), &path)
}

fn of(cpuinfo: &str, path: &str) -> String {
    let values = |key: &str| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).collect::<Vec<_>>()
    };
    let flags: Vec<&str> = values("flags").first().map_or(Vec::new(), |flags| flags.split(' ').collect());
    let found = PATHS.iter().find(|(_, needs)| needs.iter().all(|flag| flags.contains(flag)));
    let path = if path.is_empty() { found.map_or("scalar", |(name, _)| name) } else { path };
    let names = values("model name");
    format!("{path}, {}, {} cores", names.first().unwrap_or(&"unknown processor"), names.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_its_path_its_processor_and_its_cores() {
        let core =
            |flags: &str| format!("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n\n").repeat(2);
        let avx512 = "fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16";
        for (flags, path, expect) in [
            (avx512, "", "avx512bf16, AMD EPYC, 2 cores"),
            (&format!("{avx512} amx_bf16 amx_tile"), "", "amx, AMD EPYC, 2 cores"),
            ("fma avx2 avx512f", "", "avx2, AMD EPYC, 2 cores"),
            ("sse2", "", "scalar, AMD EPYC, 2 cores"),
            (avx512, "avx2", "avx2, AMD EPYC, 2 cores"),
        ] {
            assert_eq!(of(&core(flags), path), expect);
        }
        assert_eq!(of("", ""), "scalar, unknown processor, 0 cores");
    }
}
