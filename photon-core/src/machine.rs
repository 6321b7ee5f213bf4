//! The decisions: pure functions of what happened, with time and randomness passed in.

pub mod assignment;
pub mod breaker;
pub mod checkpoint;
pub mod claims;
mod lanes;
pub mod lease;
pub mod outage;
pub mod retention;
pub mod retry;
pub mod settlement;
pub mod shards;
pub mod subscription;
pub mod throttle;
pub mod watermark;
