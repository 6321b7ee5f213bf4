//! Private NATS servers.

use std::ffi::OsString;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::server::{Launch, Server, installed, new_dir};

/// Where `nats-server` lies.
const PROGRAMS: &[&str] = &["nats-server", "/usr/sbin/nats-server"];

/// A private NATS server with JetStream.
#[derive(Debug)]
pub struct Nats {
    server: Server,
}

impl Nats {
    /// What to do where it is not installed; `None` where it is.
    pub fn missing() -> Option<String> {
        installed(PROGRAMS).is_none().then(|| {
            "NATS is not installed (there is no nats-server): apt-get install nats-server".to_owned()
        })
    }

    /// Starts the installed one with these arguments beside address, port and store directory. JetStream is on, and
    /// messages may have 8 MiB.
    ///
    /// # Panics
    /// If it is not installed or does not start.
    pub fn start_new(args: &[&str]) -> Self {
        Self::start_program(&Self::program(), &[&["--jetstream"], args].concat())
    }

    /// Starts the installed one as a service is started: it comes back by itself when it breaks off. Servers of 2.9.10 do
    /// now and then when a stream is removed that is in use.
    ///
    /// # Panics
    /// If it is not installed or does not start.
    pub fn start_supervised() -> Self {
        let supervisor = ["sh", "-c", r#"while :; do "$@"; sleep 0.05; done"#, "supervisor"];
        Self::launch(&supervisor, &Self::program(), &["--jetstream"])
    }

    fn program() -> PathBuf {
        installed(PROGRAMS).unwrap_or_else(|| panic!("{}", Self::missing().unwrap_or_default()))
    }

    /// Starts this program, for another version or without JetStream, with these arguments beside address, port
    /// and store directory.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_program(program: &Path, args: &[&str]) -> Self {
        Self::launch(&[], program, args)
    }

    fn launch(supervisor: &[&str], program: &Path, args: &[&str]) -> Self {
        let dir = new_dir("nats");
        let config = dir.join("nats.conf");
        std::fs::write(&config, "max_payload: 8MB\n").expect("its directory can be written");
        let mut command: Vec<OsString> = supervisor.iter().map(OsString::from).collect();
        command.extend([program.into(), "-a".into(), "127.0.0.1".into(), "-sd".into()]);
        command.extend([dir.join("data").into(), "-c".into(), config.into()]);
        command.extend(args.iter().map(OsString::from));
        let server = Server::launch(Launch {
            name: "NATS",
            dir,
            command: Box::new(move |port| {
                let mut command = command.clone();
                command.extend(["-p".into(), port.to_string().into()]);
                command
            }),
            is_ready: Box::new(greets),
            stop_signal: "INT",
        });
        Self { server }
    }

    /// Starts it again, after a kill, with this as its configuration beside address, port and store directory.
    ///
    /// # Panics
    /// If it does not start.
    pub fn configure(&self, text: &str) {
        std::fs::write(self.dir().join("nats.conf"), text).expect("its directory can be written");
        self.crash();
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr())
    }
}

impl Deref for Nats {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Whether a server says who it is, which it does once it takes clients.
fn greets(addr: SocketAddr) -> bool {
    let greeting = || -> std::io::Result<[u8; 5]> {
        let limit = Duration::from_secs(1);
        let mut stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_read_timeout(Some(limit))?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting)?;
        Ok(greeting)
    };
    greeting().is_ok_and(|greeting| greeting == *b"INFO ")
}
