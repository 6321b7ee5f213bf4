//! The smallest service: one topic, one handler, one file.
//!
//!     cargo run --example hello

mod common;

use photon::prelude::*;

#[topic("greetings")]
#[derive(Serialize, Deserialize)]
struct Greeting {
    who: String,
}

#[subscribe]
async fn greet(greeting: Greeting) {
    println!("hello, {}", greeting.who);
}

#[tokio::main]
async fn main() -> photon::Result<()> {
    let photon = Photon::builder().from_url(&common::engine_or("sqlite:hello.db")).build().await?;
    let executor = photon.start_executor().await?;
    photon.publish(&Greeting { who: "world".into() }).await?;
    let report = executor.drain().await?; // shutdown + join, after everything published so far is settled
    assert_eq!(report.handled(), 1, "one greeting, one hello");
    Ok(())
}
