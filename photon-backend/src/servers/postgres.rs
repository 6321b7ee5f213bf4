//! Private Postgres servers.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::server::{Launch, Server};

/// Where Debian and its kin keep the servers, a directory for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// What the copies of certificate and key are called, beside the data.
const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";
/// The password of the superuser `postgres`.
const PASSWORD: &str = "photon-test";

/// What can be set for a [`Postgres`].
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl PostgresOptions {
    /// The defaults of Postgres, but for room for many connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a parameter of `postgresql.conf`.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets the server take encrypted connections, with this certificate and its key (PEM).
    #[must_use]
    pub fn certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self
    }
}

/// A private Postgres server. Commits wait for the disk, unless it is told otherwise.
///
/// Users need a password. The superuser is `postgres`.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    bin: PathBuf,
    databases: AtomicU32,
}

impl Postgres {
    /// The name of the engine and what to do where it is not installed; `None` where it is.
    pub fn missing() -> Option<String> {
        bin().is_none().then(|| {
            format!("Postgres is not installed (there is no {VERSIONS}/*/bin/postgres): apt-get install postgresql")
        })
    }

    /// Starts one with an empty database `postgres`.
    ///
    /// # Panics
    /// If it is not installed or does not start.
    pub fn start_new(options: &PostgresOptions) -> Self {
        let bin = bin().unwrap_or_else(|| panic!("{}", Self::missing().unwrap_or_default()));
        let user = ServerUser::find();
        let dir = new_dir(&user, &bin);
        if let Some((certificate, key)) = &options.certificate {
            user.take(certificate, &dir.join(CERTIFICATE));
            user.take(key, &dir.join(KEY));
        }
        let server = Server::launch(Launch {
            name: "Postgres",
            command: command(&user, &bin, &dir, options),
            is_ready: is_ready(&bin),
            stop_signal: "INT",
            dir,
        });
        Self { server, bin, databases: AtomicU32::new(0) }
    }

    /// The URL of a database, for the superuser.
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.addr(), database)
    }

    /// The same by way of a proxy.
    pub fn url_at(&self, addr: SocketAddr, database: &str) -> String {
        format!("postgres://postgres:{PASSWORD}@{addr}/{database}")
    }

    /// Makes a database of its own for a test, and returns its name.
    pub fn new_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs statements as the superuser and returns what they return, as `psql -At` prints it.
    ///
    /// # Panics
    /// If one fails.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        let output = Command::new(self.bin.join("psql"))
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                &self.url(database),
                "-c",
                statements,
            ])
            .output()
            .expect("psql can be started");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "psql cannot run {statements}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// The programs of the newest version.
fn bin() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let found = versions.map(|entry| entry.path()).filter(|path| path.join("bin/postgres").exists());
    Some(found.max_by_key(|path| number(path))?.join("bin"))
}

/// Who runs the server: Postgres refuses root.
struct ServerUser {
    name: &'static str,
    /// User and group, if it is another one than ours.
    ids: Option<(u32, u32)>,
}

impl ServerUser {
    fn find() -> Self {
        let us = fs::metadata("/proc/self").expect("/proc is mounted").uid();
        if us != 0 {
            return Self { name: "self", ids: None };
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = |name: &str| {
            let mut fields =
                users.lines().find(|line| line.split(':').next() == Some(name))?.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let found = ["postgres", "nobody"].into_iter().find_map(|name| Some((name, ids(name)?)));
        let (name, ids) = found.expect("there is a user to run Postgres as: postgres or nobody");
        Self { name, ids: Some(ids) }
    }

    /// A command run as this user.
    fn command(&self, program: &Path) -> Vec<OsString> {
        let mut command = Vec::new();
        if let Some((user, group)) = self.ids {
            let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
            command.extend(["setpriv", &user, &group, "--clear-groups"].map(OsString::from));
        }
        command.push(program.into());
        command
    }

    /// Makes a copy of a file that only this user may read, as the server wants its key to be.
    fn take(&self, file: &Path, copy: &Path) {
        let copied = fs::copy(file, copy)
            .and_then(|_| fs::set_permissions(copy, Permissions::from_mode(0o600)))
            .and_then(|()| self.ids.map_or(Ok(()), |(user, group)| chown(copy, Some(user), Some(group))));
        copied.unwrap_or_else(|error| panic!("{} cannot be copied: {error}", file.display()));
    }

    fn run(&self, program: &Path, args: &[&str]) {
        let command = self.command(program);
        let output = Command::new(&command[0]).args(&command[1..]).args(args).current_dir("/").output();
        let output = output.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} {args:?} fails: {error}");
    }
}

/// A directory with a new cluster in `data`, which the user owns: a copy of one that is made once, because
/// making it takes a second or two.
fn new_dir(user: &ServerUser, bin: &Path) -> PathBuf {
    let template = template(user, bin);
    let dir = tempfile::Builder::new().prefix("photon-postgres-").tempdir().expect("a directory can be made");
    let dir = dir.keep();
    let copied =
        Command::new("cp").args(["-a", "--reflink=auto"]).arg(template).arg(dir.join("data")).status();
    assert!(copied.is_ok_and(|status| status.success()), "the template of a cluster cannot be copied");
    if let Some((user, group)) = user.ids {
        chown(&dir, Some(user), Some(group)).expect("root gives directories away");
    }
    dir
}

/// The cluster that is copied. Processes that make it at once wait for each other.
fn template(user: &ServerUser, bin: &Path) -> PathBuf {
    let version = bin.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let us = fs::metadata("/proc/self").expect("/proc is mounted").uid();
    let place = std::env::temp_dir().join(format!("photon-postgres-template-{us}-{}-{version}-1", user.name));
    fs::create_dir_all(&place).expect("a directory can be made");
    assert_eq!(fs::metadata(&place).expect("it was made").uid(), us, "{} is not ours", place.display());
    let lock = File::create(place.join("lock")).expect("a file can be made");
    lock.lock().expect("a file can be locked");
    let made = place.join("made");
    if !made.exists() {
        let making = place.join("making");
        let _ = fs::remove_dir_all(&making);
        fs::create_dir(&making).expect("a directory can be made");
        let password = place.join("password");
        let mut file = File::create(&password).expect("a file can be made");
        writeln!(file, "{PASSWORD}").expect("a file can be written");
        if let Some((user, group)) = user.ids {
            chown(&making, Some(user), Some(group)).expect("root gives directories away");
        }
        let password = format!("--pwfile={}", password.display());
        let directory = format!("--pgdata={}", making.display());
        let args =
            ["--auth=scram-sha-256", "--username=postgres", "--encoding=UTF8", "--locale=C", &password];
        user.run(&bin.join("initdb"), &[args.as_slice(), &[&directory]].concat());
        fs::rename(&making, &made).expect("a directory can be renamed");
    }
    made
}

fn command(
    user: &ServerUser,
    bin: &Path,
    dir: &Path,
    options: &PostgresOptions,
) -> Box<dyn Fn(u16) -> Vec<OsString> + Send + Sync> {
    let mut command = user.command(&bin.join("postgres"));
    command.push("-D".into());
    command.push(dir.join("data").into());
    let settings =
        [("listen_addresses", "127.0.0.1"), ("unix_socket_directories", ""), ("max_connections", "200")];
    let given = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in settings.into_iter().chain(given) {
        command.extend(["-c".into(), format!("{name}={value}").into()]);
    }
    if options.certificate.is_some() {
        for (name, value) in [("ssl_cert_file", CERTIFICATE), ("ssl_key_file", KEY)] {
            command.extend(["-c".into(), format!("{name}={}", dir.join(value).display()).into()]);
        }
        command.extend(["-c".into(), "ssl=on".into()]);
    }
    Box::new(move |port| {
        let mut command = command.clone();
        command.extend(["-p".into(), port.to_string().into()]);
        command
    })
}

fn is_ready(bin: &Path) -> Box<dyn Fn(SocketAddr) -> bool + Send + Sync> {
    let program = bin.join("pg_isready");
    Box::new(move |addr| {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let asked =
            Command::new(&program).args(["-q", "-h", &host, "-p", &port]).stdout(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    })
}
