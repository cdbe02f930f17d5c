//! JSON values counted while they are read: a list of zeros takes 32 bytes of memory for 2 of the file.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::Cell;

/// The common limits of all values read with it.
pub(super) struct Budget {
    values: Cell<usize>,
    bytes: Cell<usize>,
}

impl Budget {
    pub(super) fn new(values: usize, bytes: usize) -> Budget {
        Budget { values: Cell::new(values), bytes: Cell::new(bytes) }
    }

    fn spend<E: Error>(&self, bytes: usize) -> Result<(), E> {
        match (self.values.get().checked_sub(1), self.bytes.get().checked_sub(bytes)) {
            (Some(values), Some(bytes)) => {
                self.values.set(values);
                self.bytes.set(bytes);
                Ok(())
            }
            (None, _) => Err(E::custom("more values than any tokenizer has outside its vocabulary")),
            (_, None) => Err(E::custom("more text than any tokenizer has outside its vocabulary")),
        }
    }

    fn of<E: Error>(&self, value: Value) -> Result<Value, E> {
        self.spend(value.as_str().map_or(0, str::len))?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for &Budget {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Budget {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        self.of(flag.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        self.of(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        self.of(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        self.of(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.of(text.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.of(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.spend(key.len())?;
            object.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}
