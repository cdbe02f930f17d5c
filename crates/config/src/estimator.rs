//! `loss.advantage`: an estimator by its name, or a function of the user's.

use plimsoll_algo::advantage::Advantage;
use schemars::JsonSchema;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::PathBuf;

const PYTHON: &str = "python:";

/// How rewards become advantages: by name, or `python:FILE.py:FUNCTION`.
#[derive(Clone, Debug, PartialEq)]
pub enum Estimator {
    /// A baseline by name.
    Named(Advantage),
    /// A function of the user's, in a worker.
    Python {
        /// The file, from where the command runs.
        file: PathBuf,
        function: String,
    },
}

impl std::fmt::Display for Estimator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Estimator::Named(advantage) => advantage.fmt(f),
            Estimator::Python { file, function } => write!(f, "{PYTHON}{}:{function}", file.display()),
        }
    }
}

impl Serialize for Estimator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Estimator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Estimator, D::Error> {
        let text = String::deserialize(deserializer)?;
        let Some(place) = text.strip_prefix(PYTHON) else {
            return Advantage::deserialize(StrDeserializer::new(&text)).map(Estimator::Named);
        };
        match place.rsplit_once(':') {
            Some((file, function)) if !file.is_empty() && !function.is_empty() => {
                Ok(Estimator::Python { file: file.into(), function: function.into() })
            }
            _ => Err(serde::de::Error::custom(format!("`{text}` is not python:FILE.py:FUNCTION"))),
        }
    }
}

impl JsonSchema for Estimator {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Estimator".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let named = generator.subschema_for::<Advantage>();
        schemars::json_schema!({ "anyOf": [named, { "type": "string", "pattern": "^python:.+:.+$" }] })
    }
}
