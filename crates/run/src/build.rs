//! Which build of plimsoll runs: two programs with one identity compute the same bits on machines of one kind.
//!
//! Linkers leave a hash of what they linked, the build id. Reading it takes one page of the file, however large its
//! debug information is, and stripping that does not change it. A program without one is identified by all its bytes.

use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::note::NT_GNU_BUILD_ID;
use goblin::elf::program_header::ProgramHeader;
use plimsoll_base::open_regular;
use plimsoll_files::record_of;
use std::io::Read;
use std::path::Path;

/// Bytes at the start of a program in which its headers and its build id are looked for.
const HEAD_BYTES: u64 = 64 << 10;

/// Returns the identity of this program's build in hex: the linker's build id, or the SHA-256 of the file.
///
/// Without /proc it is "unknown".
pub fn own_build() -> String {
    build_of(Path::new("/proc/self/exe")).unwrap_or_else(|_| "unknown".into())
}

fn build_of(program: &Path) -> std::io::Result<String> {
    let mut head = Vec::new();
    open_regular(program)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    build_id(&head).map_or_else(|| Ok(record_of(program)?.sha256), Ok)
}

/// Returns the build id of an ELF file of which `head` is the start.
fn build_id(head: &[u8]) -> Option<String> {
    let mut elf = Elf::lazy_parse(Elf::parse_header(head).ok()?).ok()?;
    let context = Ctx::new(elf.header.container().ok()?, elf.header.endianness().ok()?);
    let (at, count) = (elf.header.e_phoff, elf.header.e_phnum);
    elf.program_headers =
        ProgramHeader::parse(head, usize::try_from(at).ok()?, count.into(), context).ok()?;
    let mut notes = elf.iter_note_headers(head)?.filter_map(Result::ok);
    let note =
        notes.find(|note| note.n_type == NT_GNU_BUILD_ID && note.name == "GNU" && !note.desc.is_empty())?;
    Some(note.desc.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_head() -> Vec<u8> {
        let mut head = Vec::new();
        let program = std::fs::File::open("/proc/self/exe").expect("it runs");
        program.take(HEAD_BYTES).read_to_end(&mut head).expect("it is readable");
        head
    }

    #[test]
    fn a_build_id_is_read_from_the_start_of_a_program() {
        let mut head = own_head();
        let Some(id) = build_id(&head) else {
            eprintln!("skipped: this linker leaves no build id");
            return;
        };
        assert_eq!(id, own_build());
        assert!(id.len() >= 16, "{id}");
        let bytes: Vec<u8> = (0..id.len() / 2)
            .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hex"))
            .collect();
        let at = head.windows(bytes.len()).position(|window| window == bytes).expect("it is in the head");
        head[at] ^= 1;
        assert_ne!(build_id(&head), Some(id), "another id is another build");
    }

    #[test]
    fn what_has_no_build_id_is_known_by_all_its_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program");
        let mut lying = own_head();
        // Its program headers would lie far beyond the file.
        lying[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        for bytes in [&b""[..], b"#!/bin/sh\n", &own_head()[..48], &lying] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(build_of(&path).expect("readable"), plimsoll_files::digest(bytes));
        }
        assert!(build_of(&folder.path().join("missing")).is_err());
    }
}
