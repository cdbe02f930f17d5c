//! A folder with all test programs, for a machine without Rust: written there, and put in place here.

use super::programs::{Binary, MANIFEST, Program, Suite};
use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::note::NT_GNU_BUILD_ID;
use goblin::elf::program_header::ProgramHeader;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs that remove debug information, the first that is there.
const STRIPPERS: [[&str; 2]; 3] = [["strip", "-S"], ["objcopy", "-S"], ["llvm-strip", "-S"]];

/// Bytes at the start of a program in which its headers and its build id are looked for.
const HEAD_BYTES: u64 = 64 << 10;

/// Writes the programs, the binaries that they start, this program, and the manifest; returns the number of bytes.
pub fn write(suite: &Suite, folder: &Path) -> Result<u64, String> {
    let mut packed = Suite { root: suite.root.clone(), ..Suite::default() };
    let mut bytes = 0;
    for part in ["programs", "binaries"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).map_err(|err| format!("{}: {err}", part.display()))?;
    }
    for program in &suite.programs {
        let path = Path::new("programs").join(program.name.replace('/', "."));
        bytes += copy(&program.path, &folder.join(&path))?;
        packed.programs.push(Program { path, ..program.clone() });
    }
    for (index, binary) in suite.binaries.iter().enumerate() {
        let name = binary.path.file_name().unwrap_or_default().to_string_lossy();
        let path = PathBuf::from(format!("binaries/{index}-{name}"));
        bytes += copy(&binary.path, &folder.join(&path))?;
        packed.binaries.push(Binary { path, place: binary.place.clone() });
    }
    // The build may have replaced the file that this process was started from, so the process itself is copied.
    bytes += copy(Path::new("/proc/self/exe"), &folder.join("xtask"))?;
    let text = serde_json::to_string_pretty(&packed).map_err(|err| err.to_string())? + "\n";
    let path = folder.join(MANIFEST);
    fs::write(&path, text).map_err(|err| format!("{}: {err}", path.display()))?;
    Ok(bytes)
}

/// Copies a program without its debug information; returns its bytes.
fn copy(from: &Path, to: &Path) -> Result<u64, String> {
    let say = |err: std::io::Error| format!("{} to {}: {err}", from.display(), to.display());
    // An earlier pack's file may be running.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map_err(say)?;
    for [name, flag] in STRIPPERS {
        let mut command = Command::new(name);
        if command.arg(flag).arg(to).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            break;
        }
    }
    fs::metadata(to).map(|metadata| metadata.len()).map_err(say)
}

/// Puts binaries where tests look for them; refuses a repository elsewhere, and another build in a binary's place.
pub fn place(suite: &Suite) -> Result<(), String> {
    if !suite.root.is_dir() {
        let root = suite.root.display();
        return Err(format!(
            "the programs read files of the repository in {root}, where it was when they were built\nhint: make {root} a \
             link to this machine's copy"
        ));
    }
    suite.binaries.iter().try_for_each(put)
}

fn put(binary: &Binary) -> Result<(), String> {
    let Binary { path, place } = binary;
    let say = |err: std::io::Error| format!("{} to {}: {err}", path.display(), place.display());
    if place.exists() {
        let ids = (build_id(path), build_id(place));
        return if ids.0 == ids.1 {
            Ok(())
        } else {
            Err(format!("{} is another build\nhint: remove it: it is a copy of a program", place.display()))
        };
    }
    fs::create_dir_all(place.parent().unwrap_or(Path::new("/"))).map_err(say)?;
    if fs::hard_link(path, place).is_err() {
        fs::copy(path, place).map_err(say)?;
    }
    Ok(())
}

/// Returns the linker's build id of a program, which stays when debug information goes.
fn build_id(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    let mut elf = Elf::lazy_parse(Elf::parse_header(&head).ok()?).ok()?;
    let context = Ctx::new(elf.header.container().ok()?, elf.header.endianness().ok()?);
    let (at, count) = (usize::try_from(elf.header.e_phoff).ok()?, elf.header.e_phnum.into());
    elf.program_headers = ProgramHeader::parse(&head, at, count, context).ok()?;
    let mut notes = elf.iter_note_headers(&head)?.filter_map(Result::ok);
    Some(notes.find(|note| note.n_type == NT_GNU_BUILD_ID && note.name == "GNU")?.desc.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shake::programs;

    #[test]
    fn a_packed_suite_is_read_again_and_its_binaries_are_put_in_place() {
        let folder = std::env::temp_dir().join(format!("plimsoll-pack-{}", std::process::id()));
        let own = std::env::current_exe().expect("a path");
        let program =
            Program { name: "a/test/b".into(), path: own.clone(), cwd: "xtask".into(), harness: false };
        let binary = Binary { path: own.clone(), place: folder.join("place/debug/b") };
        let suite = Suite { root: folder.clone(), programs: vec![program], binaries: vec![binary] };
        assert!(write(&suite, &folder).expect("the temporary folder is writable") > 0);
        let found = programs::read(&folder).expect("it was written");
        let path = folder.canonicalize().expect("it is there").join("programs/a.test.b");
        assert_eq!(found.programs, [Program { path, ..suite.programs[0].clone() }]);
        assert_eq!(build_id(&found.programs[0].path), build_id(&own), "stripping has kept the id");
        place(&found).expect("nothing is there");
        place(&found).expect("the same build is there");
        assert!(folder.join("xtask").is_file());
        fs::write(folder.join("place/debug/c"), "").expect("it is writable");
        fs::rename(folder.join("place/debug/c"), folder.join("place/debug/b")).expect("it is writable");
        if build_id(&own).is_some() {
            assert!(place(&found).expect_err("another file is there").contains("is another build"));
        }
        let elsewhere = Suite { root: folder.join("none"), ..found };
        assert!(place(&elsewhere).expect_err("no repository is there").contains("hint: make"));
        fs::remove_dir_all(&folder).expect("it is there");
    }
}
