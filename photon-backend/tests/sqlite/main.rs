//! The SQLite store: the conformance suite, and what is special to a file on a disk.

mod conformance;
mod places;
