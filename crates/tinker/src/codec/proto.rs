//! Reads and writes protobuf's wire format where the bytes lie: nothing is allocated for a field before its reader has
//! counted it, so a small body cannot stand for many messages.
//!
//! Fields that a reader does not know are passed over, as protobuf has it. Groups do not exist in proto3 and are
//! refused.

use plimsoll_base::{Error, Result};

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// Fields of one message, in the order of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct WireFields<'a> {
    rest: &'a [u8],
    /// The message's name, for errors.
    name: &'static str,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> WireFields<'a> {
    pub fn of(name: &'static str, bytes: &'a [u8]) -> WireFields<'a> {
        WireFields { rest: bytes, name }
    }

    /// Returns the next field's number and value, or `None` at the end.
    ///
    /// Errors: `tinker-bad-request` where the bytes are no message.
    pub fn next(&mut self) -> Result<Option<(u64, WireValue<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            VARINT => WireValue::Varint(self.varint()?),
            FIXED64 => WireValue::Fixed64(u64::from_le_bytes(self.array()?)),
            FIXED32 => WireValue::Fixed32(u32::from_le_bytes(self.array()?)),
            BYTES => {
                let length = self.varint()?;
                let length = usize::try_from(length).ok().filter(|length| *length <= self.rest.len());
                let length = length.ok_or_else(|| self.bad("a field is longer than the message"))?;
                let (bytes, rest) = self.rest.split_at(length);
                self.rest = rest;
                WireValue::Bytes(bytes)
            }
            kind => return Err(self.bad(&format!("a field has the wire type {kind}"))),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (i, byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(self.bad("a number does not end"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.bad("it is cut off in a number"));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    fn bad(&self, what: &str) -> Error {
        Error::new("tinker-bad-request", format!("the protobuf message {}: {what}", self.name))
    }
}

impl<'a> WireValue<'a> {
    /// Returns the bytes of a field that is a message, a string or bytes.
    ///
    /// Errors: `tinker-bad-request`.
    pub fn bytes(self, name: &str) -> Result<&'a [u8]> {
        match self {
            WireValue::Bytes(bytes) => Ok(bytes),
            other => Err(wrong(name, "bytes", other)),
        }
    }

    pub fn text(self, name: &str) -> Result<&'a str> {
        std::str::from_utf8(self.bytes(name)?)
            .map_err(|_| Error::new("tinker-bad-request", format!("{name} is no UTF-8")))
    }

    pub fn integer(self, name: &str) -> Result<i64> {
        match self {
            // Negative numbers are their two's complement in ten bytes.
            WireValue::Varint(value) => Ok(value.cast_signed()),
            other => Err(wrong(name, "an integer", other)),
        }
    }

    pub fn double(self, name: &str) -> Result<f64> {
        match self {
            WireValue::Fixed64(bits) => Ok(f64::from_bits(bits)),
            other => Err(wrong(name, "a double", other)),
        }
    }
}

fn wrong(name: &str, wanted: &str, given: WireValue<'_>) -> Error {
    let given = match given {
        WireValue::Varint(_) => "an integer",
        WireValue::Fixed64(_) | WireValue::Fixed32(_) => "a number of fixed size",
        WireValue::Bytes(_) => "bytes",
    };
    Error::new("tinker-bad-request", format!("{name} is {given} on the wire, and {wanted} is expected"))
}

/// Reads a repeated integer's field, packed or one by one, into `out`, of which `most` are taken.
///
/// Errors: `tinker-bad-request`.
pub fn push_integers(
    value: WireValue<'_>,
    name: &'static str,
    most: usize,
    out: &mut Vec<i64>,
) -> Result<()> {
    let mut push = |number: i64| {
        if out.len() == most {
            return Err(Error::new("tinker-bad-request", format!("{name} has more than {most} numbers")));
        }
        out.push(number);
        Ok(())
    };
    if let WireValue::Bytes(packed) = value {
        let mut fields = WireFields::of(name, packed);
        while !fields.rest.is_empty() {
            push(fields.varint()?.cast_signed())?;
        }
        return Ok(());
    }
    push(value.integer(name)?)
}

/// Returns key and value of an entry of a map.
///
/// Errors: `tinker-bad-request`.
pub fn entry<'a>(name: &'static str, bytes: &'a [u8]) -> Result<(&'a str, Option<WireValue<'a>>)> {
    let (mut fields, mut key, mut value) = (WireFields::of(name, bytes), "", None);
    while let Some((number, field)) = fields.next()? {
        match number {
            1 => key = field.text(name)?,
            2 => value = Some(field),
            _ => {}
        }
    }
    Ok((key, value))
}

/// Writes a message.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// Writes an integer, but 0, which is what a missing field means.
    pub fn integer(&mut self, number: u64, value: u64) {
        if value != 0 {
            self.varint(number << 3);
            self.varint(value);
        }
    }

    pub fn double(&mut self, number: u64, value: f64) {
        self.varint(number << 3 | FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bytes(&mut self, number: u64, bytes: &[u8]) {
        self.varint(number << 3 | BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub fn message(&mut self, number: u64, message: &Writer) {
        self.bytes(number, &message.0);
    }
}
