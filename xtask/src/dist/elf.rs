//! What a binary requires of its machine, read from its own tables: glibc version and libraries.

use goblin::elf::Elf;
use std::fmt;

/// (major, minor).
pub type Version = (u32, u32);

/// Libraries that every machine with glibc has; any other would have to be in the package.
const LIBRARIES: [&str; 8] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
];

/// Requirements of a binary.
#[derive(Debug, PartialEq, Eq)]
pub struct Needs {
    /// Newest glibc version among its symbols.
    pub glibc: Version,
    /// Library of that symbol.
    pub newest: String,
    pub libraries: Vec<String>,
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "glibc {}.{} and {}", self.glibc.0, self.glibc.1, self.libraries.join(", "))
    }
}

/// Reads the tables of a dynamically linked binary.
pub fn needs(bytes: &[u8]) -> Result<Needs, String> {
    let elf = Elf::parse(bytes).map_err(|err| format!("no ELF file: {err}"))?;
    let libraries: Vec<String> = elf.libraries.iter().map(|name| name.to_string()).collect();
    let mut newest: Option<(Version, String)> = None;
    for need in elf.verneed.iter().flat_map(|table| table.iter()) {
        let library = elf.dynstrtab.get_at(need.vn_file).unwrap_or_default();
        for auxiliary in need.iter() {
            let name = elf.dynstrtab.get_at(auxiliary.vna_name).unwrap_or_default();
            let found = name.strip_prefix("GLIBC_").and_then(version);
            newest = newest.max(found.map(|version| (version, library.to_string())));
        }
    }
    let (glibc, newest) = newest.ok_or("it needs no version of glibc, so it is not linked to it")?;
    Ok(Needs { glibc, newest, libraries })
}

/// Refuses a binary that other machines cannot start.
pub fn check(needs: &Needs, glibc_max: Version) -> Result<(), String> {
    let (major, minor) = needs.glibc;
    if needs.glibc > glibc_max {
        return Err(format!(
            "a symbol of {} needs glibc {major}.{minor}, and a release at most {}.{}; build it with this command, or try it \
             out with --any-glibc",
            needs.newest, glibc_max.0, glibc_max.1
        ));
    }
    match needs.libraries.iter().find(|name| !LIBRARIES.contains(&name.as_str())) {
        Some(other) => Err(format!("it needs {other}, which not every machine has")),
        None => Ok(()),
    }
}

/// Parses `2.17`; ignores a third number.
fn version(text: &str) -> Option<Version> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        for (text, expect) in
            [("2.17", Some((2, 17))), ("2.2.5", Some((2, 2))), ("PRIVATE", None), ("2", None)]
        {
            assert_eq!(version(text), expect, "{text}");
        }
        assert!(version("2.9") < version("2.28"));
    }

    #[test]
    fn what_a_release_may_not_need_is_refused() {
        let needs = |glibc, library: &str| Needs {
            glibc,
            newest: "libm.so.6".into(),
            libraries: vec!["libc.so.6".into(), library.into()],
        };
        let refusal = |needs: Needs| check(&needs, (2, 28)).err().unwrap_or_default();
        assert_eq!(refusal(needs((2, 28), "libm.so.6")), "");
        assert!(refusal(needs((2, 29), "libm.so.6")).contains("a symbol of libm.so.6 needs glibc 2.29"));
        assert!(refusal(needs((2, 17), "libpython3.11.so")).contains("libpython3.11.so"));
    }

    #[test]
    fn the_tables_of_this_program_are_read() {
        let own = std::fs::read(std::env::current_exe().expect("a path")).expect("it is readable");
        let needs = needs(&own).expect("it is linked to glibc");
        assert!(needs.glibc >= (2, 2) && needs.libraries.iter().any(|name| name == "libc.so.6"), "{needs}");
        assert!(super::needs(b"#!/bin/sh\n").is_err());
    }
}
