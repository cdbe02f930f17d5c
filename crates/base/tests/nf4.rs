//! NF4 against bitsandbytes: codes, scales and decoded values, to the bit. The golden file has eight blocks: small
//! normal numbers, large ones, an even spread from -1 to 1, and numbers of very different sizes. (Blocks of zeros have
//! no scale there either, and their codes mean nothing.)

use plimsoll_base::nf4::{CODES_OF_WORD, NF4_BLOCK, decode, encode};
use serde_json::Value;

#[test]
fn codes_are_those_of_bitsandbytes() {
    let golden: Value = serde_json::from_str(include_str!("golden/nf4.json")).expect("JSON");
    let list = |name: &str| -> Vec<u32> {
        let list = golden[name].as_array().expect("a list");
        list.iter().map(|value| value.as_u64().expect("a number") as u32).collect()
    };
    let floats = |name: &str| -> Vec<f32> { list(name).into_iter().map(f32::from_bits).collect() };
    let x = floats("x");
    assert_eq!(x.len(), 8 * NF4_BLOCK);
    let (mut words, mut scales) = (vec![0; x.len() / CODES_OF_WORD], vec![0.0; x.len() / NF4_BLOCK]);
    encode(&x, &mut words, &mut scales);
    let codes: Vec<u32> =
        (0..x.len()).map(|i| words[i / CODES_OF_WORD] >> (4 * (i % CODES_OF_WORD)) & 15).collect();
    assert_eq!(codes, list("codes"));
    assert_eq!(scales, floats("scales"));
    let mut values = vec![0.0; x.len()];
    decode(&words, &scales, &mut values);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(values), bits(floats("values")));
}
