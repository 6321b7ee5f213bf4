//! Items in function bodies, beside each other, switched off, and made by macros.
#![deny(warnings)]

use photon::prelude::*;

macro_rules! events {
    ($($name:ident $topic:literal $key:ident: $type:ty),*) => { $(
        #[topic(name = $topic, key = $key)]
        #[derive(Serialize, Deserialize)]
        struct $name { $key: $type }

        const _: () = {
            #[subscribe(topic = $topic, group = $topic)]
            async fn handle(event: $name) {
                let _ = event.$key;
            }
        };
    )* };
}
events!(A "a" id: u8, B "b" name: String);

#[topic("switched-off")]
#[cfg(any(unix, windows))]
#[cfg(not(any(unix, windows)))]
#[derive(Serialize, Deserialize)]
struct Off;

#[subscribe(topic = "switched-off")]
#[cfg(not(any(unix, windows)))]
async fn off(_: Off) {}

#[subscribe(group = "optional")]
async fn optional(
    _: A,
    #[cfg(not(any(unix, windows)))] _: Missing,
    #[cfg(any(unix, windows))] _: Context,
    #[cfg(unix)]
    #[cfg(windows)]
    _: Missing,
) {
}

fn main() {
    #[topic("in-a-function")]
    #[derive(Serialize, Deserialize)]
    struct Inner;

    #[subscribe]
    async fn inner(_: Inner) {}

    let _ = (inner, Inner);
}
