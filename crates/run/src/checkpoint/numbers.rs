//! Floating-point numbers in JSON that keep their bits: written as the shortest decimal text that the standard library
//! reads back exactly. JSON readers may round numbers, and JSON has no NaN.

/// `#[serde(with = "exact")]` on an `f64`.
pub mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:?}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not a number")))
    }
}

/// `#[serde(with = "exact_option")]` on an `Option<f64>`.
pub mod exact_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(|value| format!("{value:?}")).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        let parse =
            |text: String| text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not a number")));
        Option::<String>::deserialize(deserializer)?.map(parse).transpose()
    }
}

/// `#[serde(with = "exact_map")]` on a `BTreeMap<u32, f64>`.
pub mod exact_map {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    #[derive(Serialize, Deserialize)]
    struct Exact(#[serde(with = "super::exact")] f64);

    pub fn serialize<S: Serializer>(map: &BTreeMap<u32, f64>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(key, &value)| (key, Exact(value))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, f64>, D::Error> {
        let map = BTreeMap::<u32, Exact>::deserialize(deserializer)?;
        Ok(map.into_iter().map(|(key, Exact(value))| (key, value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Numbers {
        #[serde(with = "super::exact")]
        a: f64,
        #[serde(with = "super::exact_option")]
        b: Option<f64>,
        #[serde(with = "super::exact_map", default)]
        c: std::collections::BTreeMap<u32, f64>,
    }

    #[test]
    fn every_number_comes_back_with_its_bits() {
        let bits =
            [0x3fb9_9999_9999_999a, 1, 0x7ff0_0000_0000_0000, 0x8000_0000_0000_0000, 0x400c_cccc_cccc_cccd];
        for bits in bits.into_iter().chain((0..200).map(|i| 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(i) >> 2)) {
            let number = f64::from_bits(bits);
            let c = [(1, number), (16, number)].into();
            let text = serde_json::to_string(&Numbers { a: number, b: Some(number), c });
            let back: Numbers = serde_json::from_str(&text.unwrap()).unwrap();
            assert_eq!((back.a.to_bits(), back.b.map(f64::to_bits)), (bits, Some(bits)));
            let c: Vec<(u32, u64)> = back.c.iter().map(|(&k, value)| (k, value.to_bits())).collect();
            assert_eq!(c, [(1, bits), (16, bits)]);
        }
        let back: Numbers = serde_json::from_str("{\"a\": \"NaN\", \"b\": null}").unwrap();
        assert!(back.a.is_nan() && back.b.is_none());
        assert!(serde_json::from_str::<Numbers>("{\"a\": \"one\", \"b\": null}").is_err());
    }
}
