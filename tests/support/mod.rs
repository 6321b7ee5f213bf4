//! What the tests of promises and cases share: the engines, a scripted handler, and instances that can crash.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses a part")]

#[macro_use]
pub mod engines;
pub mod instance;
pub mod log;
pub mod probe;
pub mod script;

pub use engines::{Engine, World};
pub use instance::{Instance, Plan};
pub use probe::{Entry, Probe, What};
pub use script::{Act, Loose, Single, Step, loose, single, step};
