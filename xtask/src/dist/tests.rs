//! What is packed, from files that are made up.

use super::files::{File, Kind};
use super::package::TARGET;
use super::*;
use crate::repository_root;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};

const EPOCH: i64 = 1_700_000_000;

fn files() -> Vec<File> {
    let file = |kind, name: &str| File { kind, name: name.into(), bytes: name.repeat(50).into_bytes() };
    vec![
        file(Kind::Binary, "plimsoll"),
        file(Kind::Zsh, "_plimsoll"),
        file(Kind::Man, "plimsoll-train.1"),
        file(Kind::License, "LICENSE"),
        file(Kind::Readme, "README.md"),
    ]
}

/// The files of a wheel: those, and the Python package.
fn pack(files: &[File], glibc: elf::Version, epoch: i64) -> Result<Packed, String> {
    wheel::pack(&package(), &files.iter().collect::<Vec<_>>(), glibc, epoch)
}

fn package() -> package::Package {
    package::Package::read(repository_root()).expect("the manifests are readable")
}

/// The files of a wheel with their modes.
fn unzip(wheel: &Packed) -> BTreeMap<String, (Vec<u8>, Option<u32>)> {
    let mut zip = zip::ZipArchive::new(Cursor::new(&wheel.bytes)).expect("a zip file");
    let mut files = BTreeMap::new();
    for index in 0..zip.len() {
        let mut file = zip.by_index(index).expect("it is listed");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("it is whole");
        files.insert(file.name().expect("UTF-8").into_owned(), (bytes, file.unix_mode()));
    }
    files
}

#[test]
fn a_wheel_lists_each_of_its_files_with_its_checksum() {
    let wheel = pack(&files(), (2, 31), EPOCH).expect("it is packed");
    let stem = format!("plimsoll_rl-{}", package().version);
    assert_eq!(wheel.name, format!("{stem}-py3-none-manylinux_2_31_x86_64.whl"));
    let files = unzip(&wheel);
    let (binary, mode) = &files[&format!("{stem}.data/scripts/plimsoll")];
    assert_eq!((binary.len(), mode.map(|mode| mode & 0o777)), (400, Some(0o755)));
    assert!(files.contains_key(&format!("{stem}.data/data/share/man/man1/plimsoll-train.1")));
    let text =
        |name: &str| String::from_utf8_lossy(&files[&format!("{stem}.dist-info/{name}")].0).into_owned();
    assert!(text("METADATA").contains("\nLicense-Expression: Apache-2.0\n"));
    assert!(text("WHEEL").ends_with("\nTag: py3-none-manylinux_2_31_x86_64\n"));
    let record = text("RECORD");
    assert_eq!(record.lines().count(), files.len());
    for (path, (bytes, _)) in files.iter().filter(|(path, _)| !path.ends_with("/RECORD")) {
        assert!(record.contains(&format!("{path},sha256=")), "{path}");
        assert!(
            record.lines().any(|line| line.starts_with(path) && line.ends_with(&format!(",{}", bytes.len())))
        );
    }
}

#[test]
fn a_wheel_has_the_package_and_says_which_interpreters_load_it() {
    let root = repository_root();
    let names = |files: &[File]| files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
    let plain = files::python(None, root).expect("the package is readable");
    for wanted in [
        "plimsoll/__init__.py",
        "plimsoll/py.typed",
        "plimsoll/collect/__init__.py",
        "plimsoll_rl/__init__.py",
    ] {
        assert!(names(&plain).contains(&wanted.to_string()), "{wanted}: {:?}", names(&plain));
    }
    let wheel = pack(&plain, (2, 28), EPOCH).expect("it is packed");
    assert!(wheel.name.ends_with("-py3-none-manylinux_2_28_x86_64.whl"), "{}", wheel.name);
    assert!(unzip(&wheel).contains_key("plimsoll/__init__.py"));
    let native = files::python(Some(b"ELF".to_vec()), root).expect("the package is readable");
    let wheel = pack(&native, (2, 28), EPOCH).expect("it is packed");
    assert!(wheel.name.ends_with("-cp310-abi3-manylinux_2_28_x86_64.whl"), "{}", wheel.name);
    assert!(unzip(&wheel).contains_key("plimsoll/collect/_native.abi3.so"));
}

#[test]
fn cargo_binstall_finds_the_archive_and_the_binary_in_it() {
    let package = package();
    let packed = archive::pack(&package, &files(), EPOCH).expect("it is packed");
    let text =
        fs::read_to_string(repository_root().join("crates/plimsoll/Cargo.toml")).expect("it is readable");
    let manifest: toml::Table = text.parse().expect("it is TOML");
    let key =
        |name: &str| manifest["package"]["metadata"]["binstall"][name].as_str().expect("a text").to_string();
    let values = [
        ("{ repo }", package.repository.as_str()),
        ("{ name }", &package.name),
        ("{ version }", &package.version),
        ("{ target }", TARGET),
        ("{ bin }", "plimsoll"),
        ("{ binary-ext }", ""),
    ];
    let filled =
        |template: String| values.iter().fold(template, |text, (name, value)| text.replace(name, value));
    assert_eq!(key("pkg-fmt"), "tgz");
    assert!(filled(key("pkg-url")).ends_with(&format!("/v{}/{}", package.version, packed.name)));
    let gzip = flate2::read::GzDecoder::new(&packed.bytes[..]);
    let mut tar = tar::Archive::new(gzip);
    let entries = tar.entries().expect("a tar file").map(|entry| {
        let entry = entry.expect("it is whole");
        let header = entry.header();
        let path = entry.path().expect("UTF-8").display().to_string();
        (path, (header.mode().expect("a number"), header.mtime().expect("a number")))
    });
    let entries: BTreeMap<String, (u32, u64)> = entries.collect();
    assert_eq!(entries[&filled(key("bin-dir"))], (0o755, EPOCH as u64));
    let folder = packed.name.trim_end_matches(".tar.gz");
    assert!(entries.contains_key(&format!("{folder}/completions/_plimsoll")), "{entries:?}");
    assert!(entries.contains_key(&format!("{folder}/man/plimsoll-train.1")), "{entries:?}");
}

#[test]
fn the_same_files_are_the_same_package() {
    for _ in 0..2 {
        let wheel = || pack(&files(), (2, 28), EPOCH).expect("it is packed").bytes;
        let archive = || archive::pack(&package(), &files(), EPOCH).expect("it is packed").bytes;
        assert_eq!((wheel(), archive()), (wheel(), archive()));
    }
    let other = pack(&files(), (2, 28), EPOCH + 2).expect("it is packed").bytes;
    assert_ne!(other, pack(&files(), (2, 28), EPOCH).expect("it is packed").bytes);
    assert!(pack(&files(), (2, 28), 0).is_err(), "1970 is no time of a zip file");
}

#[test]
fn a_binary_that_names_a_folder_of_this_machine_is_refused() {
    let root = Path::new("/home/someone/plimsoll");
    assert_eq!(build::check_paths(b"at /plimsoll/crates/a.rs:1", root), Ok(()));
    let refused = build::check_paths(b"at /home/someone/plimsoll/crates/a.rs:1", root);
    assert!(refused.is_err_and(|what| what.contains("/home/someone/plimsoll")));
}

#[test]
fn flags_are_read() {
    let parse = |words: &[&str]| {
        options(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>(), Path::new("/r"))
    };
    let all =
        parse(&["--binary", "b", "--native", "n", "--any-glibc", "--out", "o"]).expect("they are its own");
    assert_eq!((all.binary, all.native), (Some("b".into()), Some("n".into())));
    assert_eq!((all.any_glibc, all.out), (true, "o".into()));
    assert_eq!(parse(&[]).map(|options| options.out), Some("/r/dist".into()));
    assert!(parse(&["--binary"]).is_none() && parse(&["--glibc"]).is_none());
}
