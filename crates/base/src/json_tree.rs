//! The bytes of JSON as a tree of `serde_json` values, bounded from its text before anything is built: text of two
//! bytes can become a value of 72, in a list that doubles as it grows.

use serde_json::Value;

/// Bytes of a value in its list, as it lies there and while the list is copied into one twice as large.
const ITEM_BYTES: usize = 3 * size_of::<Value>();
/// Bytes of a member of an object: hash, name and value, as items are, and its place in the index.
const MEMBER_BYTES: usize = 3 * (size_of::<Value>() + size_of::<String>() + 8) + 32;
/// The least room of a list: four items.
const LIST_BYTES: usize = 4 * size_of::<Value>();
/// The least index of an object, and what an allocator adds to the allocations of a value.
const ALLOCATION_BYTES: usize = 64;
/// Most lists and objects within each other: those of `serde_json`.
const DEPTH_MAX: usize = 128;

/// Returns the most bytes that the tree of a JSON text takes while it is built; of other texts, no less than they take
/// until they are refused.
pub fn json_tree_bytes(text: &str) -> usize {
    // One bit a level: 1 for an object. Deeper texts are refused by the reader.
    let (mut bytes, mut objects, mut depth) = (size_of::<Value>(), 0_u128, 0_usize);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        if quoted {
            bytes += 1;
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b'"' => {
                quoted = true;
                bytes += ALLOCATION_BYTES / 2;
            }
            b'[' | b'{' => {
                if depth == DEPTH_MAX {
                    return bytes;
                }
                let is_object = byte == b'{';
                objects = objects << 1 | u128::from(is_object);
                depth += 1;
                // The first item or member has no comma before it.
                bytes += ALLOCATION_BYTES + if is_object { MEMBER_BYTES } else { LIST_BYTES };
            }
            b']' | b'}' => {
                objects >>= 1;
                depth = depth.saturating_sub(1);
            }
            b',' => bytes += if objects & 1 == 1 { MEMBER_BYTES } else { ITEM_BYTES },
            _ => {}
        }
    }
    bytes
}

/// Reads JSON whose tree takes at most `tree_bytes_max` bytes while it is built.
///
/// Errors: words on what is wrong, after "answered".
pub fn json_within(text: &str, tree_bytes_max: usize) -> Result<Value, String> {
    if json_tree_bytes(text) > tree_bytes_max {
        return Err(format!("with values that would take more than {tree_bytes_max} bytes as a tree"));
    }
    serde_json::from_str(text).map_err(|err| format!("no JSON: line {}, column {}", err.line(), err.column()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_beyond_its_bound_is_refused_before_it_is_built() {
        let many = format!("[{}0]", "0,".repeat(100_000));
        assert!(json_tree_bytes(&many) > 100_000 * size_of::<Value>());
        assert!(json_within(&many, 1 << 20).expect_err("too large").contains("1048576 bytes as a tree"));
        assert!(json_within(&many, 32 << 20).is_ok());
        assert!(json_within("[1,", 4096).expect_err("cut").contains("no JSON"));
        // Commas and brackets in strings are none, and what is long takes little more than its text.
        let long = format!("[\"{}\"]", "[,{\\\"".repeat(100_000));
        assert!(json_tree_bytes(&long) < long.len() + 1024);
        assert!(json_tree_bytes(&"[".repeat(1 << 20)) < 64 << 10, "the reader stops there");
    }
}
