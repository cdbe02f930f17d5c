//! Frames between a run and its script. A frame is the length of its header, u32; the header, a JSON object that names
//! the frame's arrays; and their numbers, little-endian, one array after the other. Numbers never pass through JSON.

use super::fault::{Fault, Served, bad_array, bad_request, too_large};
use super::room::{ScriptArrays, ScriptGradients, Slot};
use super::verbs::Verb;
use plimsoll_base::{Error, Exit, Result, shown};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest header, in bytes.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Most arrays of a frame.
const ARRAYS_MAX: usize = 16;
/// Most bytes of an array that is read and thrown away, so that its frame ends where it says.
const SKIPPED_BYTES_MAX: u64 = 1 << 32;
/// Bytes that pass at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The socket of a script.
#[derive(Debug)]
pub(super) struct Link {
    reader: BufReader<UnixStream>,
    writer: BufWriter<UnixStream>,
}

/// An array as a header names it.
#[derive(Debug, Deserialize)]
struct Named(String, String, u64);

/// The numbers of an array of an answer, in pieces.
pub(super) enum Numbers<'n> {
    F32(Vec<&'n [f32]>),
    U32(Vec<&'n [u32]>),
    U64(&'n [u64]),
    U8(Vec<&'n [u8]>),
}

impl Link {
    /// Connects to the socket at which a script listens.
    ///
    /// Errors: `script-ended`.
    pub(super) fn connect(path: &Path) -> Result<Link> {
        let connect = || {
            let socket = UnixStream::connect(path)?;
            let writer = BufWriter::with_capacity(PIECE_BYTES, socket.try_clone()?);
            Ok(Link { reader: BufReader::with_capacity(PIECE_BYTES, socket), writer })
        };
        connect().map_err(|err: io::Error| {
            Error::usage("script-ended", format!("no script listens at {}: {err}", path.display()))
                .hint("--script names the Unix socket of a program that listens when the run starts")
        })
    }

    /// Reads a request, and its arrays into their places.
    pub(super) fn request(
        &mut self,
        (arrays, gradients): (&mut ScriptArrays, &mut ScriptGradients),
    ) -> Served<Verb> {
        arrays.clear();
        gradients.logprobs.clear();
        gradients.entropy.clear();
        let mut header = self.header()?;
        let named = header.remove("arrays").unwrap_or_else(|| json!([]));
        let named: Vec<Named> = serde_json::from_value(named).map_err(|err| bad_frame(&err.to_string()))?;
        if named.len() > ARRAYS_MAX {
            return Err(bad_frame(&format!("{} arrays", named.len())).into());
        }
        let mut wrong = None;
        for Named(name, dtype, count) in &named {
            let slot = arrays.slot(gradients, name);
            match self.array(slot, name, dtype, *count) {
                Err(Fault::OfRequest(error)) => wrong = wrong.or(Some(error)),
                read => read?,
            }
        }
        if let Some(error) = wrong {
            return Err(Fault::OfRequest(error));
        }
        serde_json::from_value(Value::Object(header))
            .map_err(|err| bad_request(format!("the request: {err}"), "use the package of the same version"))
    }

    fn header(&mut self) -> Result<Map<String, Value>> {
        let mut length = [0; 4];
        self.reader.read_exact(&mut length).map_err(|err| ended(&err))?;
        let length = u32::from_le_bytes(length);
        if length > HEADER_BYTES_MAX {
            return Err(bad_frame(&format!("a header of {length} bytes, at most {HEADER_BYTES_MAX}")));
        }
        let mut text = vec![0; length as usize];
        self.reader.read_exact(&mut text).map_err(|err| ended(&err))?;
        match serde_json::from_slice(&text) {
            Ok(Value::Object(header)) => Ok(header),
            Ok(_) => Err(bad_frame("a header that is no object")),
            Err(err) => Err(bad_frame(&format!("a header that is no JSON: {err}"))),
        }
    }

    /// Reads an array into its place, or past it where it has none.
    fn array(&mut self, slot: Option<Slot<'_>>, name: &str, dtype: &str, count: u64) -> Served<()> {
        let width = match dtype {
            "<f4" | "<u4" => 4,
            "<u8" => 8,
            "|u1" => 1,
            other => return Err(bad_frame(&format!("numbers of dtype {}", shown(other))).into()),
        };
        let bytes = count.saturating_mul(width);
        let fits = |most: usize| count <= most as u64;
        let reader = &mut self.reader;
        match (slot, dtype) {
            (Some(Slot::F32(out, most)), "<f4") if fits(most) => {
                read(reader, bytes, |bytes| out.extend(numbers(bytes).map(f32::from_le_bytes)))
            }
            (Some(Slot::U32(out, most)), "<u4") if fits(most) => {
                read(reader, bytes, |bytes| out.extend(numbers(bytes).map(u32::from_le_bytes)))
            }
            (Some(Slot::U64(out, most)), "<u8") if fits(most) => {
                read(reader, bytes, |bytes| out.extend(numbers(bytes).map(u64::from_le_bytes)))
            }
            (Some(Slot::U8(out, most)), "|u1") if fits(most) => {
                out.clear();
                read(reader, bytes, |bytes| out.extend_from_slice(bytes))
            }
            (slot, _) => {
                if bytes > SKIPPED_BYTES_MAX {
                    return Err(bad_frame(&format!("an array of {bytes} bytes")).into());
                }
                read(reader, bytes, |_| {})?;
                Err(misfit(slot, name, dtype, count))
            }
        }
    }

    /// Writes an answer.
    ///
    /// Errors: `script-ended`.
    pub(super) fn answer(&mut self, mut header: Value, arrays: &[(&str, Numbers<'_>)]) -> Result<()> {
        let named = arrays.iter().map(|(name, numbers)| json!([name, numbers.dtype(), numbers.count()]));
        header["arrays"] = named.collect();
        let text = header.to_string();
        let write = || {
            self.writer.write_all(&(text.len() as u32).to_le_bytes())?;
            self.writer.write_all(text.as_bytes())?;
            arrays.iter().try_for_each(|(_, numbers)| numbers.write(&mut self.writer))?;
            self.writer.flush()
        };
        let mut write = write;
        write().map_err(|err: io::Error| ended(&err))
    }

    /// Answers that a request cannot be met.
    ///
    /// Errors: `script-ended`.
    pub(super) fn refuse(&mut self, error: &Error) -> Result<()> {
        let Error { slug, message, facts, hints, .. } = error;
        let of = json!({ "slug": slug, "message": message, "facts": facts, "hints": hints });
        self.answer(json!({ "error": of }), &[])
    }
}

impl Numbers<'_> {
    fn dtype(&self) -> &'static str {
        match self {
            Numbers::F32(_) => "<f4",
            Numbers::U32(_) => "<u4",
            Numbers::U64(_) => "<u8",
            Numbers::U8(_) => "|u1",
        }
    }

    fn count(&self) -> usize {
        match self {
            Numbers::F32(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Numbers::U32(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Numbers::U64(numbers) => numbers.len(),
            Numbers::U8(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Numbers::F32(pieces) => {
                pieces.iter().copied().flatten().try_for_each(|number| out.write_all(&number.to_le_bytes()))
            }
            Numbers::U32(pieces) => {
                pieces.iter().copied().flatten().try_for_each(|number| out.write_all(&number.to_le_bytes()))
            }
            Numbers::U64(numbers) => {
                numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))
            }
            Numbers::U8(pieces) => pieces.iter().try_for_each(|piece| out.write_all(piece)),
        }
    }
}

/// Gives the bytes of an array to `take`, some at a time: a multiple of eight, but for the last.
fn read(reader: &mut impl Read, bytes: u64, mut take: impl FnMut(&[u8])) -> Served<()> {
    let (mut piece, mut left) = ([0; PIECE_BYTES], bytes);
    while left > 0 {
        let now = left.min(PIECE_BYTES as u64) as usize;
        reader.read_exact(&mut piece[..now]).map_err(|err| ended(&err))?;
        take(&piece[..now]);
        left -= now as u64;
    }
    Ok(())
}

fn numbers<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

/// Returns the fault of an array that has no place.
fn misfit(slot: Option<Slot<'_>>, name: &str, dtype: &str, count: u64) -> Fault {
    let (wants, most) = match slot {
        Some(Slot::F32(_, most)) => ("<f4", most),
        Some(Slot::U32(_, most)) => ("<u4", most),
        Some(Slot::U64(_, most)) => ("<u8", most),
        Some(Slot::U8(_, most)) => ("|u1", most),
        None => return bad_array(shown(name).as_ref(), "no request has such an array"),
    };
    if wants != dtype {
        return bad_array(name, format!("its numbers are {dtype}, and must be {wants}"));
    }
    too_large(
        format!("the array `{name}` has {count} entries, the plan has room for {most}"),
        "a request has at most rollout.prompts_per_step x rollout.group_size sequences of rollout.max_new_tokens: ask in parts, or raise them",
    )
}

fn bad_frame(what: &str) -> Error {
    Error::new("script-bad-frame", format!("the script sent what is no frame: {what}"))
        .hint("use the Python package of the same version")
}

/// Returns the error of a script that is gone. Nothing is saved: it may have meant to begin again.
fn ended(err: &io::Error) -> Error {
    let words = match err.kind() {
        io::ErrorKind::UnexpectedEof => "its end of the socket is closed".to_string(),
        _ => err.to_string(),
    };
    let error = Error::new("script-ended", format!("the script has ended: {words}"))
        .hint("go on from the newest checkpoint: plimsoll.Session(..., resume=True)");
    Error { exit: Exit::Interrupted, ..error }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
