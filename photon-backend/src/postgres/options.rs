//! What can be set for a [`PostgresStore`](super::PostgresStore), and how a URL says it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use photon_core::error::StoreError;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::error::refused;

/// The longest name of a schema, in bytes: the name of the notification channel holds it, too.
const MAX_SCHEMA_BYTES: usize = 48;

/// What can be set for a [`PostgresStore`](super::PostgresStore). Every process may set its own, but for the
/// schema: processes that share a log name the same one.
#[derive(Clone)]
pub struct PostgresOptions {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) schema: String,
    pub(super) connections: usize,
    pub(super) timeout: Duration,
    pub(super) poll_interval: Duration,
    pub(super) dedup_window: Duration,
}

/// Whether connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tls {
    /// No.
    Off,
    /// Yes, and the server must show a certificate for its name. The certificates to trust are in the file, or
    /// else those of the system.
    Verified { roots: Option<PathBuf> },
}

impl PostgresOptions {
    /// Reads a URL such as `postgres://user:password@host:5432/database`. Several hosts may be given, with commas
    /// between them: the one that takes writes is used.
    ///
    /// The parameters of libpq are understood, as far as they have a meaning here: `sslmode`, `sslrootcert`,
    /// `application_name`, `options`, `connect_timeout`, `host`, `port`, `keepalives*` and some more. Beside them
    /// there is `schema`, see [`schema`](Self::schema).
    ///
    /// Connections to other machines are encrypted, and the server's certificate is checked against its name
    /// (`sslmode=verify-full`; `require` means the same). `sslmode=disable` sends everything, also the password's
    /// proof, in the clear; for a server on this machine that is the default.
    ///
    /// # Errors
    /// `Refused`, saying what to write. The password is never part of the message.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let Parts { url, sslmode, roots, schema } = split(url)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map_or_else(String::new, |why| format!(": {why}"));
            refused(format!(
                "the URL of the Postgres database cannot be read{why}: write for instance \
                 \"postgres://user:password@host:5432/database\""
            ))
        })?;
        let tls = tls(&config, sslmode.as_deref(), roots)?;
        config.ssl_mode(if tls == Tls::Off { SslMode::Disable } else { SslMode::Require });
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("photon");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        let options = Self {
            config,
            tls,
            schema: "photon".to_owned(),
            connections: 8,
            timeout: Duration::from_secs(30),
            poll_interval: Duration::from_secs(1),
            dedup_window: Duration::from_secs(600),
        };
        Ok(match schema {
            Some(schema) => options.schema(schema),
            None => options,
        })
    }

    /// The schema that holds Photon's tables; made if it is missing. Lower-case letters, digits and `_`, up to 48
    /// bytes. Two logs in one database take two schemas. Default: `photon`.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// How many connections publishing and reading may have open, at least 1. Default 8. Three more are for
    /// checkpoints and leases alone, so that no burst of publishing keeps them waiting, and one listens.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// How long an operation may take, from waiting for a connection to the answer, before it fails. Default 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often readers look even though no notification came: those can get lost with a connection, and do not
    /// pass a pooler in transaction mode. Default 1 s.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// For how long after an event with a dedup id another one with the same id in the same shard is not stored.
    /// Zero: every event is stored. Default: 10 minutes.
    #[must_use]
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.dedup_window = window;
        self
    }

    /// Refuses what cannot be the name of a schema. So it needs no quotes, and never holds any.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let name = &self.schema;
        let starts = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if starts && name.chars().all(rest) && name.len() <= MAX_SCHEMA_BYTES && !name.starts_with("pg_") {
            return Ok(());
        }
        Err(refused(format!(
            "{name:?} cannot be the schema of a Photon log: take lower-case letters, digits and _, not a digit or \
             pg_ first, at most {MAX_SCHEMA_BYTES} bytes"
        )))
    }

    /// Where the database is, for messages: without the password.
    pub(super) fn place(&self) -> String {
        let ports = self.config.get_ports();
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .enumerate()
            .map(|(index, host)| {
                let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
                match host {
                    Host::Tcp(name) => format!("{name}:{port}"),
                    #[cfg(unix)]
                    Host::Unix(path) => format!("{}:{port}", path.display()),
                }
            })
            .collect();
        let user = self.config.get_user().unwrap_or_default();
        let database = self.config.get_dbname().unwrap_or(user);
        format!("{database:?} at {} (user {user:?}, schema {:?})", hosts.join(","), self.schema)
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("place", &self.place())
            .field("tls", &self.tls)
            .field("connections", &self.connections)
            .field("timeout", &self.timeout)
            .field("poll_interval", &self.poll_interval)
            .field("dedup_window", &self.dedup_window)
            .finish_non_exhaustive()
    }
}

/// A URL without the parameters that the client does not know.
struct Parts {
    url: String,
    sslmode: Option<String>,
    roots: Option<PathBuf>,
    schema: Option<String>,
}

fn split(url: &str) -> Result<Parts, StoreError> {
    let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
    if !is_url {
        return Err(refused(
            "the URL of a Postgres database starts with \"postgres://\": write for instance \
             \"postgres://user:password@host:5432/database\"",
        ));
    }
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut parts = Parts { url: base.to_owned(), sslmode: None, roots: None, schema: None };
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => parts.sslmode = Some(value.to_owned()),
            Some(("sslrootcert", value)) => parts.roots = Some(value.into()),
            Some(("schema", value)) => parts.schema = Some(value.to_owned()),
            _ => kept.push(pair),
        }
    }
    if !kept.is_empty() {
        parts.url = format!("{base}?{}", kept.join("&"));
    }
    Ok(parts)
}

fn tls(config: &Config, mode: Option<&str>, roots: Option<PathBuf>) -> Result<Tls, StoreError> {
    let is_local = config.get_hosts().iter().all(is_local);
    match mode {
        Some("disable") => Ok(Tls::Off),
        None if is_local && roots.is_none() => Ok(Tls::Off),
        None | Some("require" | "verify-full") => Ok(Tls::Verified { roots }),
        Some("allow" | "prefer") if is_local => Ok(Tls::Off),
        Some(other) => Err(refused(format!(
            "sslmode={other} is not safe or not known: write sslmode=verify-full (with sslrootcert=FILE for a \
             certificate of your own), or sslmode=disable to send everything in the clear"
        ))),
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        #[cfg(unix)]
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls_of(url: &str) -> Result<Tls, String> {
        PostgresOptions::from_url(url).map(|options| options.tls).map_err(|error| error.to_string())
    }

    #[test]
    fn connections_to_other_machines_are_encrypted_unless_it_is_said() {
        let verified = |roots: Option<&str>| Ok(Tls::Verified { roots: roots.map(PathBuf::from) });
        assert_eq!(tls_of("postgres://u:p@db.example.com/d"), verified(None));
        assert_eq!(tls_of("postgres://u:p@10.0.0.7/d?sslmode=require"), verified(None));
        assert_eq!(
            tls_of("postgres://u@h/d?sslmode=verify-full&sslrootcert=ca.pem"),
            verified(Some("ca.pem"))
        );
        assert_eq!(tls_of("postgres://u@localhost,db.example.com/d"), verified(None));
        assert_eq!(tls_of("postgres://u:p@h/d?sslmode=disable"), Ok(Tls::Off));
        assert_eq!(tls_of("postgres://u:p@localhost/d"), Ok(Tls::Off));
        assert_eq!(tls_of("postgres://u:p@[::1]:5433/d"), Ok(Tls::Off));
        assert_eq!(tls_of("postgresql://u:p@127.0.0.1/d?sslmode=verify-full"), verified(None));
        for mode in ["prefer", "allow", "verify-ca", "on"] {
            let error = tls_of(&format!("postgres://u:hunter2@h/d?sslmode={mode}")).unwrap_err();
            assert!(error.contains("verify-full") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_read_says_what_to_write_and_no_password() {
        for url in ["", "orders", "postgres://u:hunter2@h:port/d", "postgres://u:hunter2@h/d?nonsense=1"] {
            let error = PostgresOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains("postgres://user:password@") && !error.contains("hunter2"), "{error}");
        }
        let options =
            PostgresOptions::from_url("postgres://me:hunter2@h:6000/d?schema=log&options=-c%20x").unwrap();
        assert!(!format!("{options:?}").contains("hunter2"));
        assert_eq!(options.place(), r#""d" at h:6000 (user "me", schema "log")"#);
    }

    #[test]
    fn a_schema_needs_a_plain_name() {
        let options = PostgresOptions::from_url("postgres://h/d").unwrap();
        for good in ["photon", "_a1", &"x".repeat(MAX_SCHEMA_BYTES)] {
            assert!(options.clone().schema(good).check().is_ok(), "{good}");
        }
        for bad in ["", "1a", "Photon", "a-b", "a\"b", "pg_x", &"x".repeat(MAX_SCHEMA_BYTES + 1)] {
            assert!(options.clone().schema(bad).check().is_err(), "{bad}");
        }
    }
}
