//! Messages as bytes: several as one, and through a mailbox of words.

use plimsoll_base::Result;
use std::sync::atomic::{AtomicU64, Ordering};

/// Concatenates messages, each after its length.
pub(crate) fn bundle(all: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(all.iter().map(|one| 8 + one.len()).sum());
    for one in all {
        out.extend((one.len() as u64).to_le_bytes());
        out.extend(one);
    }
    out
}

/// Reads what `bundle` wrote.
///
/// Errors: `rank-lost`.
pub(crate) fn unbundle(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let cut = bytes.split_first_chunk::<8>().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
        });
        let Some((one, rest)) = cut else {
            return Err(crate::errors::lost("another host sent half a message"));
        };
        all.push(one.to_vec());
        bytes = rest;
    }
    Ok(all)
}

/// Writes bytes into a mailbox that is large enough.
pub(crate) fn put(mailbox: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = whole.iter().copied().chain((!rest.is_empty()).then_some(last));
    mailbox
        .iter()
        .zip(words)
        .for_each(|(word, bytes)| word.store(u64::from_le_bytes(bytes), Ordering::Relaxed));
}

/// Reads `into.len()` bytes of a mailbox.
pub(crate) fn take(mailbox: &[AtomicU64], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<8>();
    let mut words = mailbox.iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    whole.iter_mut().zip(words.by_ref()).for_each(|(bytes, word)| *bytes = word);
    if !rest.is_empty() {
        let word = words.next().expect("a piece is a mailbox at most");
        rest.copy_from_slice(&word[..rest.len()]);
    }
}
