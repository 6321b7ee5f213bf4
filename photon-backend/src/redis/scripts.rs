//! The scripts that run inside the server, each in one step.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident = [$($part:literal),+];)+) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("lua/", $part, ".lua")), "\n"),+))
        });)+
    };
}

scripts! {
    APPEND = ["lib", "append"];
    ENSURE = ["lib", "ensure"];
    FLOOR = ["lib", "floor"];
    TRIM = ["lib", "trim"];
    POSITION = ["lib", "position"];
    REGISTER = ["lib", "register"];
    FORGET = ["forget"];
    REVISION = ["lib", "revision"];
    COMMIT = ["lib", "checkpoint", "rows", "commit"];
    RESET = ["lib", "rows", "reset"];
    PAUSE = ["lib", "pause"];
    CHANGE = ["lib", "checkpoint", "rows", "change"];
    LOOK = ["lib", "rows", "look"];
    JOIN = ["lib", "join"];
    HEARTBEAT = ["lib", "heartbeat"];
    CLAIM = ["lib", "claim"];
    RELEASE = ["release"];
    LEAVE = ["leave"];
    PROBE = ["probe"];
}
