//! Benchmarks of Photon.
