//! The small network over the spaces of an environment, and a policy in files: weights and, in a checkpoint,
//! `policy.json`, which is needed to read them.

use super::normalise::{Moments, Scales};
use super::spaces::{ActionWriter, ObservationReader};
use plimsoll_base::{Error, Result, open_regular};
use plimsoll_config::PolicyActivation;
use plimsoll_device::Activation;
use plimsoll_devices::host;
use plimsoll_env::{Slot, Spec};
use plimsoll_model::mlp::{MlpSpec, PolicyFile};
use serde::Deserialize;
use std::io::Read;
use std::path::Path;

/// File of a checkpoint with the data that a policy needs besides its weights.
pub(crate) const POLICY_JSON: &str = "policy.json";
/// Largest size of that file: the moments of 65,536 observed numbers are 6 MiB.
const POLICY_JSON_BYTES_MAX: u64 = 16 << 20;

/// An actor-critic, with the conversions between it and an environment.
#[derive(Clone, Debug)]
pub struct Network {
    pub spec: MlpSpec,
    pub reader: ObservationReader,
    pub writer: ActionWriter,
}

impl Network {
    /// Returns the network with these hidden widths for the spaces of `env`.
    ///
    /// Errors: `policy-space-mismatch`, `env-space-unsupported`.
    pub fn of(env: &Spec, hidden: Vec<u32>, activation: Activation) -> Result<Network> {
        let reader = ObservationReader::of(&Slot::of(&env.observation)?)?;
        let writer = ActionWriter::of(&Slot::of(&env.action)?)?;
        let spec = MlpSpec { inputs: reader.width() as u32, hidden, activation, head: writer.head().clone() };
        Ok(Network { spec, reader, writer })
    }
}

#[derive(Debug)]
pub struct StoredPolicy {
    pub file: PolicyFile,
    /// Activation of the hidden layers, if `policy.json` names one.
    pub activation: Option<Activation>,
    pub moments: Option<Moments>,
}

/// The part of `policy.json` that is read.
#[derive(Deserialize)]
struct PolicyJson {
    activation: PolicyActivation,
    observation_moments: Option<Moments>,
}

impl StoredPolicy {
    /// Opens `path`: a safetensors file, or a folder with `model.safetensors` in it, such as a checkpoint.
    ///
    /// Errors: those of `PolicyFile::open`; `checkpoint-damaged` where `policy.json` is unreadable.
    pub fn open(path: &Path) -> Result<StoredPolicy> {
        let file = PolicyFile::open(path)?;
        let path = file.path().with_file_name(POLICY_JSON);
        let Some(PolicyJson { activation, observation_moments }) = read_policy_json(&path)? else {
            return Ok(StoredPolicy { file, activation: None, moments: None });
        };
        Ok(StoredPolicy { file, activation: Some(activation_of(activation)), moments: observation_moments })
    }

    /// Requires that the weights, and the moments if there are any, fit this network.
    ///
    /// Errors: `policy-shape-mismatch`.
    pub fn check(&self, network: &Network) -> Result<()> {
        self.file.check(&network.spec, &network.spec.table(host().kind))?;
        let inputs = network.reader.width();
        match &self.moments {
            Some(moments) if moments.width() != inputs => {
                let path = self.file.path().with_file_name(POLICY_JSON);
                let message = format!(
                    "{}: moments of {} numbers, an observation has {inputs}",
                    path.display(),
                    moments.width()
                );
                Err(Error::new("policy-shape-mismatch", message)
                    .hint("keep model.safetensors and policy.json of one checkpoint together"))
            }
            _ => Ok(()),
        }
    }

    pub fn scales(&self) -> Scales {
        self.moments.as_ref().map_or(Scales::default(), Moments::scales)
    }
}

pub(crate) fn activation_of(name: PolicyActivation) -> Activation {
    match name {
        PolicyActivation::Tanh => Activation::Tanh,
        PolicyActivation::Relu => Activation::Relu,
    }
}

/// Reads `policy.json`; `None` if there is none.
fn read_policy_json(path: &Path) -> Result<Option<PolicyJson>> {
    let bad = |what: String| {
        Error::new("checkpoint-damaged", format!("{}: {what}", path.display()))
            .hint("put the file of the checkpoint back; without it weights are read as a plain policy's")
    };
    let mut text = String::new();
    match open_regular(path) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(bad(err.to_string())),
        Ok(file) => {
            let read = file.take(POLICY_JSON_BYTES_MAX + 1).read_to_string(&mut text);
            read.map_err(|err| bad(err.to_string()))?;
        }
    }
    if text.len() as u64 > POLICY_JSON_BYTES_MAX {
        return Err(bad(format!("more than {POLICY_JSON_BYTES_MAX} bytes")));
    }
    let stored: PolicyJson = serde_json::from_str(&text).map_err(|err| bad(err.to_string()))?;
    if stored.observation_moments.as_ref().is_some_and(|moments| !moments.is_sound()) {
        return Err(bad("moments that are not those of numbers".into()));
    }
    Ok(Some(stored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_json_is_read_and_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(POLICY_JSON);
        assert!(read_policy_json(&path).unwrap().is_none());
        let moments = serde_json::to_string(&Moments::new(2)).unwrap();
        let text = |moments: &str| format!(r#"{{"activation": "relu", "observation_moments": {moments}}}"#);
        std::fs::write(&path, text(&moments)).unwrap();
        let stored = read_policy_json(&path).unwrap().unwrap();
        assert!(
            matches!(stored.activation, PolicyActivation::Relu)
                && stored.observation_moments.unwrap().width() == 2
        );
        let mut broken = Moments::new(2);
        broken.update(&[f32::NAN, 0.0]);
        let broken = serde_json::to_string(&broken).unwrap();
        for bad in ["{", r#"{"activation": "gelu"}"#, &text(&broken), "[]"] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(
                read_policy_json(&path).err().map(|error| error.slug),
                Some("checkpoint-damaged"),
                "{bad}"
            );
        }
    }
}
