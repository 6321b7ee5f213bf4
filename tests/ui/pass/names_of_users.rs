//! Names of users that are also names in the emitted code, and names that are keywords.
#![deny(warnings)]
#![allow(non_camel_case_types, non_snake_case, dead_code, unused_macros)]

use photon::prelude::*;

struct Some;
struct None;
struct Option;
struct Result;
struct Vec;
struct Box;
struct Send;
struct core;
struct std;
struct serde;
struct Duration;
macro_rules! line { () => {} }
macro_rules! concat { () => {} }

#[topic(name = "t", key = r#type)]
#[derive(Serialize, Deserialize)]
struct r#struct {
    r#type: u8,
}

#[subscribe(group = "delivery")]
async fn delivery(event: r#struct, argument_1: Context) {
    let _ = (event.r#type, argument_1);
}

#[subscribe(group = "needs")]
async fn needs(argument_0: r#struct, State(reply): State<u8>) {
    let _ = (argument_0.r#type, reply);
}

#[subscribe]
async fn r#loop(r#struct { r#type: out }: r#struct) {
    let _ = out;
}

fn main() {}
