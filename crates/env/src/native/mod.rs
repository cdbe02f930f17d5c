//! Native environments, with Gymnasium's dynamics to the bit (1.4.0, on glibc x86-64; elsewhere to 1e-5).
//!
//! Only they call the C library's sine and cosine: here parity with Gymnasium counts.

mod acrobot;
mod cart_pole;
mod mountain_car;
mod numbers;
mod numpy_random;
mod pendulum;
mod table;

pub use acrobot::Acrobot;
pub use cart_pole::CartPole;
pub use mountain_car::{MountainCar, MountainCarContinuous};
pub use numpy_random::NumpyRandom;
pub use pendulum::Pendulum;
pub use table::{Options, TableEnvironment};

use crate::Environment;
use plimsoll_base::{Error, Result, slugs};
use std::sync::Arc;
use table::Table;

/// Declares the environments: each is a type, or a table of transitions that may read options.
macro_rules! environments {
    ($($id:literal => $Type:ty,)* tables: $($table_id:literal => $read:expr,)*) => {
        /// Names of the native environments.
        pub const IDS: &[&str] = &[$($id,)* $($table_id),*];

        /// Passes the constructor of the environment called `id` to `visitor`.
        ///
        /// Errors: `unknown-environment`, `env-bad-option`.
        pub fn visit<V: Visitor>(id: &str, options: &Options, visitor: V) -> Result<V::Output> {
            let mut rest = options.clone();
            let read: Option<fn(&mut Options) -> Result<Arc<Table>>> = match id {
                $($table_id => Some($read),)*
                id if IDS.contains(&id) => None,
                id => return Err(unknown(id)),
            };
            let table = read.map(|read| read(&mut rest)).transpose()?;
            if let Some(name) = rest.keys().next() {
                return Err(Error::usage("env-bad-option", format!("{id} has no option `{name}`"))
                    .hint("remove it from `env_options`; FrozenLake-v1 takes `is_slippery` and `map_name`"));
            }
            Ok(match (table, id) {
                (Some(table), _) => visitor.visit(move || TableEnvironment::new(&table)),
                $((None, $id) => visitor.visit(<$Type>::default),)*
                (None, _) => return Err(unknown(id)),
            })
        }
    };
}

environments! {
    "CartPole-v1" => CartPole,
    "Acrobot-v1" => Acrobot,
    "MountainCar-v0" => MountainCar,
    "MountainCarContinuous-v0" => MountainCarContinuous,
    "Pendulum-v1" => Pendulum,
    tables:
    "FrozenLake-v1" => table::frozen_lake,
    "CliffWalking-v1" => |_| Ok(table::cliff_walking()),
    "Taxi-v4" => |_| Ok(table::taxi()),
}

/// Work on an environment whose type is known at compile time: its step is inlined into the caller's loop.
pub trait Visitor {
    /// The visitor's result.
    type Output;

    /// Takes the constructor of an environment; each call of `make` makes one.
    fn visit<E: Environment + 'static>(self, make: impl Fn() -> E + Send + 'static) -> Self::Output;
}

fn unknown(id: &str) -> Error {
    let known = format!("native are {}", IDS.join(", "));
    let error =
        Error::usage(slugs::UNKNOWN_ENVIRONMENT, format!("there is no environment `{id}`")).fact(known);
    let lower = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
    let nearest = IDS.iter().min_by_key(|name| strsim::damerau_levenshtein(&lower(id), &lower(name)));
    let near = |name: &&&str| strsim::damerau_levenshtein(&lower(id), &lower(name)) <= name.len() / 3;
    match nearest.filter(near) {
        Some(name) => error.hint(format!("did you mean `{name}`?")),
        None => error.hint(format!("a Python environment is `gym:{id}` or `python:file.py:make`")),
    }
}

#[cfg(test)]
mod golden_tests;
