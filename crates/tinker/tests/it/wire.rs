//! Bodies as clients send them: protobuf of passes, and reading of results.

/// Writes a field of bytes.
pub fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

pub fn integer(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3, &mut out);
    varint(value, &mut out);
    out
}

pub fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn entry(field: u64, key: &str, value: &[u8]) -> Vec<u8> {
    bytes(field, &[bytes(1, key.as_bytes()), bytes(2, value)].concat())
}

/// A dense tensor of one axis.
pub fn floats(numbers: &[f32]) -> Vec<u8> {
    let raw: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    [bytes(1, &raw), integer(3, 1), bytes(4, &packed(&[numbers.len()]))].concat()
}

pub fn ids(numbers: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    [bytes(1, &raw), integer(3, 2), bytes(4, &packed(&[numbers.len()]))].concat()
}

pub fn packed(numbers: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|n| varint(*n as u64, &mut out));
    out
}

/// A datum of text whose inputs are tensors.
pub fn datum(tokens: &[i32], inputs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let raw: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let chunk = bytes(1, &bytes(1, &bytes(1, &raw)));
    let inputs = inputs.iter().flat_map(|(name, tensor)| entry(2, name, tensor));
    chunk.into_iter().chain(inputs).collect()
}

/// The usual datum: each token predicts the next.
pub fn next_tokens(seq: &[i32]) -> Vec<u8> {
    let targets: Vec<i64> = seq[1..].iter().map(|token| i64::from(*token)).collect();
    let weights = vec![1.0; targets.len()];
    datum(&seq[..seq.len() - 1], &[("target_tokens", ids(&targets)), ("weights", floats(&weights))])
}

pub fn pass(model: &str, seq: u64, loss: &str, datums: &[Vec<u8>], options: &[(&str, f64)]) -> Vec<u8> {
    let mut out = [bytes(1, model.as_bytes()), integer(2, seq), bytes(4, loss.as_bytes())].concat();
    for one in datums {
        out.extend(bytes(3, one));
    }
    for (key, value) in options {
        let number = [&[0x11][..], &value.to_le_bytes()].concat();
        out.extend(bytes(5, &[bytes(1, key.as_bytes()), number].concat()));
    }
    out
}

/// The value of a metric in a pass's result.
pub fn metric(result: &[u8], name: &str) -> f64 {
    let at =
        result.windows(name.len()).position(|window| window == name.as_bytes()).expect("it has the metric");
    let value = at + name.len() + 1;
    f64::from_le_bytes(result[value..value + 8].try_into().unwrap())
}
