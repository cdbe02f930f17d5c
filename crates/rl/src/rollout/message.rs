//! Messages among ranks: what they are about, and a value in postcard's form, in which numbers keep their bits. A
//! reader trusts no length: it allocates no more than the bytes can fill.

use postcard::ser_flavors::Size;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// First bytes of a message; the digit is the format's version.
const MAGIC: [u8; 4] = *b"PLX2";

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Samples = 1,
    Episodes = 2,
    Advantages = 3,
    Teacher = 4,
    Carry = 5,
    Graded = 6,
    Apart = 7,
}

/// A rank's value, or words on the error that ended its part.
pub(crate) type Sent<T> = std::result::Result<T, String>;

/// Returns a rank's message.
pub(crate) fn pack<T: Serialize>(kind: Kind, own: Sent<&T>) -> Vec<u8> {
    let plain = "plain data has a form";
    let length = postcard::serialize_with_flavor(&own, Size::default()).expect(plain);
    let mut bytes = Vec::with_capacity(MAGIC.len() + 1 + length);
    bytes.extend(MAGIC);
    bytes.push(kind as u8);
    postcard::to_extend(&own, bytes).expect(plain)
}

/// Reads another rank's message.
///
/// Errors: words on why it cannot be read.
pub(crate) fn unpack<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<Sent<T>, String> {
    let (magic, rest) = bytes.split_at_checked(MAGIC.len()).ok_or("it ends in its first bytes")?;
    if magic != MAGIC {
        return Err(format!("it begins with {magic:02x?}, not with {MAGIC:02x?}"));
    }
    let (of, rest) = rest.split_first().ok_or("it ends in its first bytes")?;
    if *of != kind as u8 {
        return Err(format!("it is of kind {of}, not of {}", kind as u8));
    }
    match postcard::take_from_bytes::<Sent<T>>(rest) {
        Ok((sent, [])) => Ok(sent),
        Ok((_, left)) => Err(format!("{} bytes are left at its end", left.len())),
        Err(postcard::Error::SerdeDeCustom) => Err("a value in it cannot be one of its kind".into()),
        Err(err) => Err(err.to_string()),
    }
}

/// Values as JSON text: for those whose fields are not the same in each.
pub(crate) mod as_json {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(to)
    }

    pub(crate) fn deserialize<'d, T: DeserializeOwned, D: Deserializer<'d>>(from: D) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
