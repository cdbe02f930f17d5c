//! A body is read or refused by name, whatever is done to its bytes.

use super::super::proto::Writer;
use super::*;

fn tensor(kind: u64, raw: &[u8], shape: &[u8]) -> Writer {
    let mut tensor = Writer::default();
    tensor.bytes(1, raw);
    tensor.integer(3, kind);
    tensor.bytes(4, shape);
    tensor
}

/// A pass of one datum with two tokens.
fn body() -> Vec<u8> {
    let words = |numbers: &[i32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let [mut text, mut chunk, mut datum, mut out] = [(); 4].map(|()| Writer::default());
    text.bytes(1, &words(&[1, 2]));
    chunk.message(1, &text);
    datum.message(1, &chunk);
    for (name, tensor) in [
        ("target_tokens", tensor(3, &words(&[2, 3]), &[2])),
        // bfloat16: 1 and -2.
        ("weights", tensor(4, &[0x80, 0x3f, 0x00, 0xc0], &[2])),
    ] {
        let mut entry = Writer::default();
        entry.bytes(1, name.as_bytes());
        entry.message(2, &tensor);
        datum.message(2, &entry);
    }
    out.bytes(1, b"m");
    out.integer(2, 7);
    out.message(3, &datum);
    out.bytes(4, b"cross_entropy");
    out.0
}

#[test]
fn bodies_with_wrong_bytes_are_refused_by_name_and_never_a_fault() {
    let body = body();
    let whole = read(&body, 8).unwrap();
    let datum = &whole.datums[0];
    assert_eq!((datum.tokens.as_slice(), datum.targets.as_slice()), (&[1, 2][..], &[2, 3][..]));
    assert_eq!((datum.weights.as_slice(), whole.forward_only), (&[1.0, -2.0][..], false));
    assert_eq!(head(&body).unwrap(), PassHead { model: "m".into(), seq: 7 });
    let check = |bytes: &[u8]| {
        if let Err(error) = head(bytes).map(drop).and_then(|()| read(bytes, 8).map(drop)) {
            assert!(error.slug.starts_with("tinker-"), "{error}");
        }
    };
    (0..body.len()).for_each(|length| check(&body[..length]));
    for at in 0..body.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff, body[at] ^ 0x01, body[at] ^ 0x08, body[at] ^ 0x40] {
            let mut bytes = body.clone();
            bytes[at] = value;
            check(&bytes);
            // Longer by what a length may now stand for.
            bytes.extend([0x80; 40]);
            check(&bytes);
        }
    }
}
