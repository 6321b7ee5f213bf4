//! Faults that were met in practice, each with its right outcome here, under its own name.

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod bad_input;
mod modes;
mod processes;
mod runtimes;
