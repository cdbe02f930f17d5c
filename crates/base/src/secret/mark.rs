//! The mark at a value of a run directory's run file whose secret is not in it.

const BEFORE: &str = " (withheld ";
/// Hexadecimal digits of a tag. 16 bits tell another secret from the same one, and are far too few to find it by.
const TAG_DIGITS: usize = 4;

/// Returns `clean`, which has the secret taken out, with a mark. `digest`: of what it was, in hexadecimal.
///
/// Panics where the digest is shorter than a tag.
pub fn withheld(clean: &str, digest: &str) -> String {
    format!("{clean}{BEFORE}{})", &digest[..TAG_DIGITS])
}

/// Returns a marked value without its mark; `None` where there is none.
pub fn unmarked(text: &str) -> Option<&str> {
    let (clean, tag) = text.strip_suffix(')')?.rsplit_once(BEFORE)?;
    (tag.len() == TAG_DIGITS && tag.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(clean)
}
