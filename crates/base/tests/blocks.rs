//! Blocks of GGUF files against llama.cpp's own package for Python: what random bytes stand for, to the bit.

use plimsoll_base::Encoding;
use plimsoll_base::blocks::decode;
use serde_json::Value;

#[test]
fn blocks_stand_for_what_gguf_says() {
    let golden: Value = serde_json::from_str(include_str!("golden/blocks.json")).expect("JSON");
    let mut seen = 0;
    for encoding in Encoding::ALL
        .into_iter()
        .filter(|encoding| encoding.gguf_number().is_some() && encoding.block_values() > 1)
    {
        let of = &golden[encoding.name()];
        let list = |key: &str| -> Vec<u32> {
            let list = of[key].as_array().expect("a list");
            list.iter().map(|value| value.as_u64().expect("a number") as u32).collect()
        };
        let bytes: Vec<u8> = list("bytes").into_iter().map(|byte| byte as u8).collect();
        let mut values = vec![0.0; encoding.block_values() as usize];
        decode(encoding, &bytes, &[], &mut values);
        let bits: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, list("values"), "{}", encoding.name());
        seen += 1;
    }
    assert_eq!(seen, 8);
}
