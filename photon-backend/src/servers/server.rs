//! A server of any kind.

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::process::{Process, wait_until};

/// How long a server may take to start, also after it was killed.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a server may take to end when it is asked to.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// So often another port is tried, if somebody else took the one that was free.
const PORTS_TRIED: usize = 5;

/// How a kind of server is started.
pub(super) struct Launch {
    /// What it is, for messages.
    pub(super) name: &'static str,
    /// Its directory, which the server may write; removed at the end.
    pub(super) dir: PathBuf,
    /// The command for a port.
    pub(super) command: Box<dyn Fn(u16) -> Vec<OsString> + Send + Sync>,
    /// Whether it answers.
    pub(super) is_ready: Box<dyn Fn(SocketAddr) -> bool + Send + Sync>,
    /// The signal that ends it in order.
    pub(super) stop_signal: &'static str,
}

/// A private server that runs, or can be started again on its data.
///
/// It listens on 127.0.0.1, always on the same port. Every call may come from any thread.
pub struct Server {
    launch: Launch,
    addr: SocketAddr,
    process: Mutex<Option<Process>>,
}

impl Server {
    /// Starts it on a free port and waits until it answers.
    pub(super) fn launch(launch: Launch) -> Self {
        let mut server = Self { launch, addr: free_port(), process: Mutex::new(None) };
        for _ in 1..PORTS_TRIED {
            if server.try_start() {
                return server;
            }
            server.kill();
            server.addr = free_port();
        }
        server.start();
        server
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process number.
    ///
    /// # Panics
    /// If it is not running.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server was started").pid()
    }

    /// The directory that holds its data and its log.
    pub fn dir(&self) -> &Path {
        &self.launch.dir
    }

    /// What it printed since it was first started.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.launch.dir.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Kills it, with -9, and all its children. Its data stays.
    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.kill();
        }
    }

    /// Asks it to end and waits for that. Its data stays.
    ///
    /// # Panics
    /// If it does not.
    pub fn stop(&self) {
        let Some(process) = self.process().take() else { return };
        process.signal_alone(self.launch.stop_signal);
        let ended = wait_until(STOP_LIMIT, || !process.is_running());
        process.kill();
        assert!(ended, "{} does not stop; its log:\n{}", self.launch.name, self.log());
    }

    /// Starts it again on its data, at the same address, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(&self) {
        assert!(self.try_start(), "{} does not start; its log:\n{}", self.launch.name, self.log());
    }

    /// Kills it, with -9, and starts it again.
    pub fn crash(&self) {
        self.kill();
        self.start();
    }

    /// Stops the execution of it and its children, until it is thawed. Its connections stay open.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets it go on after a freeze.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        if let Some(process) = self.process().as_ref() {
            process.signal(signal);
        }
    }

    /// `false` if it ended by itself or does not answer in time.
    fn try_start(&self) -> bool {
        let mut process = self.process();
        let started = process.get_or_insert_with(|| {
            Process::start(&self.launch.dir, &(self.launch.command)(self.addr.port()))
        });
        let mut alive = true;
        let ready = wait_until(START_LIMIT, || {
            alive = started.is_running();
            !alive || (self.launch.is_ready)(self.addr)
        });
        alive && ready
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A test that failed while it held the lock leaves it as it is.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process().take().is_none() {
            // The watchdog that removes the directory is gone.
            let _ = std::fs::remove_dir_all(&self.launch.dir);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.launch.name)
            .field("addr", &self.addr)
            .field("dir", &self.launch.dir)
            .finish_non_exhaustive()
    }
}

/// A port of 127.0.0.1 that nobody listens on now.
pub(super) fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("a listener has an address")
}

/// A new directory for a server that runs as the user who runs the tests.
pub(super) fn new_dir(kind: &str) -> PathBuf {
    let prefix = format!("photon-{kind}-");
    tempfile::Builder::new().prefix(&prefix).tempdir().expect("a directory can be made").keep()
}

/// The first of the programs that is there; a bare name is looked for in the directories of `PATH`.
pub(super) fn installed(programs: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.iter().map(Path::new).find_map(|program| {
        if program.is_absolute() {
            return program.exists().then(|| program.to_owned());
        }
        std::env::split_paths(&path).map(|dir| dir.join(program)).find(|program| program.exists())
    })
}
