//! The target of packages, and what they say about the binary, from its manifest.

use super::elf::Version;
use std::path::Path;
use toml::{Table, Value};

/// The platform of releases.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Newest glibc that a release may require: that of RHEL 8 and `manylinux_2_28`.
pub const GLIBC_MAX: Version = (2, 28);

/// A finished file of a release.
pub struct Packed {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The manifest of crates/plimsoll, including what it inherits from the workspace.
pub struct Package {
    pub name: String,
    pub version: String,
    pub description: String,
    pub license: String,
    pub repository: String,
    pub keywords: Vec<String>,
    /// README.md, which package indexes show.
    pub readme: String,
}

impl Package {
    pub fn read(root: &Path) -> Result<Package, String> {
        let read = |path: &str| {
            std::fs::read_to_string(root.join(path))
                .map_err(|err| format!("{}: {err}", root.join(path).display()))
        };
        let table = |path: &str| read(path)?.parse::<Table>().map_err(|err| format!("{path}: {err}"));
        let (own, workspace) = (table("crates/plimsoll/Cargo.toml")?, table("Cargo.toml")?);
        let inherited = workspace.get("workspace").and_then(|table| table.get("package"));
        let key = |key: &str| {
            let own =
                own.get("package").and_then(|package| package.get(key)).filter(|value| !value.is_table());
            own.or_else(|| inherited?.get(key)).ok_or_else(|| format!("the manifest has no `{key}`"))
        };
        let text = |name: &str| key(name).map(|value| value.as_str().unwrap_or_default().to_string());
        let keywords = key("keywords")?.as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(Package {
            name: text("name")?,
            version: text("version")?,
            description: text("description")?,
            license: text("license")?,
            repository: text("repository")?,
            keywords: keywords.map(str::to_string).collect(),
            readme: read("README.md")?,
        })
    }
}
