//! Private Redis and Valkey servers.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use super::server::{Launch, Server, installed, new_dir};

/// Where the server lies.
const PROGRAMS: &[&str] =
    &["redis-server", "/usr/bin/redis-server", "valkey-server", "/usr/bin/valkey-server"];
/// Every write is on the disk when it is answered.
const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always", "--save", ""];

/// A private Redis server.
#[derive(Debug)]
pub struct Redis {
    server: Server,
}

impl Redis {
    /// What to do where it is not installed; `None` where it is.
    pub fn missing() -> Option<String> {
        installed(PROGRAMS).is_none().then(|| {
            "Redis is not installed (there is no redis-server): apt-get install redis-server".to_owned()
        })
    }

    /// Starts the installed one: with an append-only file whose writes wait for the disk, unless the arguments,
    /// which come last, say otherwise.
    ///
    /// # Panics
    /// If it is not installed or does not start.
    pub fn start_new(args: &[&str]) -> Self {
        let program =
            installed(PROGRAMS).unwrap_or_else(|| panic!("{}", Self::missing().unwrap_or_default()));
        Self::start_program(&program, &[DURABLE, args].concat())
    }

    /// Starts this program, for another version or without the append-only file, with these arguments beside
    /// address, port and directory.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_program(program: &Path, args: &[&str]) -> Self {
        let dir = new_dir("redis");
        let mut command: Vec<OsString> =
            vec![program.into(), "--bind".into(), "127.0.0.1".into(), "--dir".into()];
        command.push(dir.clone().into());
        command.extend(args.iter().map(OsString::from));
        let server = Server::launch(Launch {
            name: "Redis",
            dir,
            command: Box::new(move |port| {
                let mut command = command.clone();
                command.extend(["--port".into(), port.to_string().into()]);
                command
            }),
            is_ready: Box::new(answers),
            stop_signal: "TERM",
        });
        Self { server }
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Whether a server takes commands: also one that asks for a password first, but not one that still loads.
fn answers(addr: SocketAddr) -> bool {
    let answer = || -> std::io::Result<[u8; 5]> {
        let limit = Duration::from_secs(1);
        let mut stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    answer().is_ok_and(|answer| answer == *b"+PONG" || answer == *b"-NOAU")
}
