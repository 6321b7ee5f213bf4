//! Runs a command with a private server: its URL is in `PHOTON_URL`, and it ends with the command.
//!
//!     cargo run --example with_server -- nats COMMAND [ARGUMENT...]
//!
//! The engine is `postgres`, `nats` or `redis`, with the defaults of its server. Where that is not installed the
//! program ends with 77, the code for a skipped test, or with 1 if `PHOTON_REQUIRE_ENGINES=1`.

use std::process::{Command, ExitCode};

use photon_backend::servers::{Nats, Postgres, PostgresOptions, Redis, suite};

const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let engine = arguments.next().and_then(|engine| engine.into_string().ok());
    let program = arguments.next();
    let (Some(engine), Some(program)) = (engine, program) else {
        return fail("usage: with_server postgres|nats|redis COMMAND [ARGUMENT...]");
    };
    let missing = match engine.as_str() {
        "postgres" => Postgres::missing(),
        "nats" => Nats::missing(),
        "redis" => Redis::missing(),
        _ => return fail(&format!("there is no engine {engine:?}: postgres, nats or redis")),
    };
    if let Some(missing) = missing {
        eprintln!("skipped: {missing}");
        return ExitCode::from(if suite::engines_are_required() { 1 } else { SKIPPED });
    }
    let mut command = Command::new(&program);
    command.args(arguments);
    let status = match engine.as_str() {
        "postgres" => {
            let server = Postgres::start_new(&PostgresOptions::new());
            command.env("PHOTON_URL", server.url("postgres")).status()
        }
        "nats" => {
            let server = Nats::start_new(&[]);
            // As somebody starts it who has set nothing.
            server.configure("");
            command.env("PHOTON_URL", server.url()).status()
        }
        _ => {
            let server = Redis::start_new(&[]);
            command.env("PHOTON_URL", server.url()).status()
        }
    };
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => fail(&format!("{} on {engine}: {status}", program.display())),
        Err(error) => fail(&format!("{} cannot be started: {error}", program.display())),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
