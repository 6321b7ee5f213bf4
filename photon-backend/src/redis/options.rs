//! What can be set for a [`RedisStore`](super::RedisStore), and how a URL says it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use photon_core::error::StoreError;

use super::error::refused;

/// The longest prefix of keys, in bytes.
const MAX_PREFIX_BYTES: usize = 100;

/// What a write survives: how the server must be set. It is checked when the store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A crash of the server, of its system and a loss of power: it must write each change to the disk before it
    /// answers (`appendonly yes`, `appendfsync always`).
    #[default]
    Always,
    /// A crash of the server, at any instant. After a crash of its system the writes of the last second or two may be
    /// missing: it must write each change to its file (`appendonly yes`).
    EverySecond,
    /// Nothing but the process that wrote it: when the server ends, what it did not save by then is lost.
    Memory,
}

/// What can be set for a [`RedisStore`](super::RedisStore). Every process may set its own, but for the prefix and
/// the number of the database: processes that share a log name the same ones.
#[derive(Clone)]
pub struct RedisOptions {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) tls: Tls,
    pub(super) prefix: String,
    pub(super) durability: Durability,
    pub(super) timeout: Duration,
    pub(super) poll_interval: Duration,
    pub(super) dedup_window: Duration,
}

/// Whether connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tls {
    /// No.
    Off,
    /// Yes, and the server must show a certificate for its name. The certificates to trust are in the file, or else
    /// those of the system.
    Verified { roots: Option<PathBuf> },
}

impl RedisOptions {
    /// Reads a URL such as `redis://user:password@host:6379/0`, where everything but the host may be left out. Bytes
    /// that a URL cannot hold are written as `%40`.
    ///
    /// Parameters: `prefix`, see [`prefix`](Self::prefix); `durability=always`, `everysec` or `memory`, see
    /// [`durability`](Self::durability); `tls=on` or `off`; `tls_ca=FILE`, a file of certificates (PEM) to trust
    /// instead of those of the system.
    ///
    /// Connections to other machines are encrypted, and the server's certificate is checked against its name, as if
    /// the URL began with `rediss://`. `tls=off` sends everything, also the password, in the clear; for a server on
    /// this machine that is the default.
    ///
    /// # Errors
    /// `Refused`, saying what to write. The password is never part of the message.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let (encrypted, rest) = if let Some(rest) = url.strip_prefix("rediss://") {
            (true, rest)
        } else if let Some(rest) = url.strip_prefix("redis://") {
            (false, rest)
        } else {
            return Err(unreadable("it must start with \"redis://\" or \"rediss://\""));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @, because a password may hold one too.
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_address(address)?;
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                let given = |text: &str| (!text.is_empty()).then(|| decode(text)).transpose();
                (given(user)?, given(password)?)
            }
        };
        let database = if database.is_empty() { "0" } else { database };
        let database: u16 = database.parse().map_err(|_| unreadable("the database is a number such as 0"))?;
        let mut options = Self {
            tls: Tls::Off,
            host,
            port,
            user,
            password,
            database: database.into(),
            prefix: "photon".to_owned(),
            durability: Durability::Always,
            timeout: Duration::from_secs(10),
            poll_interval: Duration::from_millis(500),
            dedup_window: Duration::from_secs(600),
        };
        options.read_query(query, encrypted)?;
        Ok(options)
    }

    fn read_query(&mut self, query: &str, encrypted: bool) -> Result<(), StoreError> {
        let (mut tls, mut roots) = (encrypted.then_some(true), None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", value)) => value.clone_into(&mut self.prefix),
                Some(("tls_ca", value)) => roots = Some(PathBuf::from(decode(value)?)),
                Some(("tls", "on")) => tls = Some(true),
                Some(("tls", "off")) if !encrypted => tls = Some(false),
                Some(("durability", "always")) => self.durability = Durability::Always,
                Some(("durability", "everysec")) => self.durability = Durability::EverySecond,
                Some(("durability", "memory")) => self.durability = Durability::Memory,
                _ => {
                    // What stands there may be a part of the password.
                    return Err(unreadable(
                        "a parameter or its value is unknown; there are prefix=NAME, \
                         durability=always|everysec|memory, tls=on|off (not with rediss) and tls_ca=FILE",
                    ));
                }
            }
        }
        if tls.unwrap_or(!self.is_local() || roots.is_some()) {
            self.tls = Tls::Verified { roots };
        }
        Ok(())
    }

    /// What all keys start with, before a colon: letters, digits, `.`, `_`, `-` and `:`, up to 100 bytes. Two logs in
    /// one database take two prefixes. Default: `photon`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// What a write must survive. A server that is set to less is refused when the store is opened. Default:
    /// [`Durability::Always`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long an operation may wait for its answer, and a connection for being made, before it fails. Default 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often readers look even though no message came: those can get lost with a connection. Default 500 ms.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// For how long after an event with a dedup id another one with the same id in the same shard is not stored. The
    /// ids are kept in the memory of the server for so long. Zero: every event is stored. Default: 10 minutes.
    #[must_use]
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.dedup_window = window;
        self
    }

    /// Refuses a prefix that could be mistaken for a part of a key.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let prefix = &self.prefix;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
        if !prefix.is_empty() && prefix.len() <= MAX_PREFIX_BYTES && prefix.chars().all(is_plain) {
            return Ok(());
        }
        Err(refused(format!(
            "{prefix:?} cannot be the prefix of the keys of a Photon log: take letters, digits, '.', '_', '-' and \
             ':', at most {MAX_PREFIX_BYTES} bytes"
        )))
    }

    /// Where the log is, for messages: without the password.
    pub(super) fn place(&self) -> String {
        let Self { host, port, database, prefix, .. } = self;
        format!("{host}:{port} (database {database}, prefix {prefix:?})")
    }

    fn is_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("place", &self.place())
            .field("tls", &self.tls)
            .field("durability", &self.durability)
            .field("timeout", &self.timeout)
            .field("poll_interval", &self.poll_interval)
            .field("dedup_window", &self.dedup_window)
            .finish_non_exhaustive()
    }
}

fn unreadable(why: &str) -> StoreError {
    refused(format!(
        "the URL of the Redis server cannot be read: {why}; write for instance \"redis://user:password@host:6379/0\""
    ))
}

fn split_address(address: &str) -> Result<(String, u16), StoreError> {
    // An IPv6 address stands in brackets.
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(unreadable("it names no host"));
    }
    let port =
        port.map_or(Ok(6379), str::parse).map_err(|_| unreadable("the port is a number such as 6379"))?;
    Ok((host.to_owned(), port))
}

/// Reads `%40` and the like.
fn decode(text: &str) -> Result<String, StoreError> {
    let bad = || unreadable("a % stands for a byte, with two hexadecimal digits behind it");
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at_checked(2).ok_or_else(bad)?;
        bytes.push(u8::from_str_radix(hex, 16).map_err(|_| bad())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> RedisOptions {
        RedisOptions::from_url(url).unwrap()
    }

    #[test]
    fn a_url_names_everything() {
        let all = options("redis://me:hun%40ter2@redis.example.com:7000/3?prefix=app&durability=everysec");
        assert_eq!((all.host.as_str(), all.port, all.database), ("redis.example.com", 7000, 3));
        assert_eq!((all.user.as_deref(), all.password.as_deref()), (Some("me"), Some("hun@ter2")));
        assert_eq!((all.prefix.as_str(), all.durability), ("app", Durability::EverySecond));
        assert_eq!(all.place(), r#"redis.example.com:7000 (database 3, prefix "app")"#);
        assert!(!format!("{all:?}").contains("ter2"));
        let short = options("redis://:pw@localhost");
        assert_eq!((short.port, short.database, short.user), (6379, 0, None));
        assert_eq!(short.password.as_deref(), Some("pw"));
        assert_eq!(options("redis://[::1]:6380").port, 6380);
    }

    #[test]
    fn connections_to_other_machines_are_encrypted_unless_it_is_said() {
        let verified = |roots: Option<&str>| Tls::Verified { roots: roots.map(PathBuf::from) };
        for (url, tls) in [
            ("redis://localhost", Tls::Off),
            ("redis://127.0.0.1:7000", Tls::Off),
            ("redis://[::1]", Tls::Off),
            ("redis://10.0.0.7", verified(None)),
            ("redis://10.0.0.7?tls=off", Tls::Off),
            ("redis://localhost?tls=on", verified(None)),
            ("redis://localhost?tls_ca=ca.pem", verified(Some("ca.pem"))),
            ("rediss://localhost", verified(None)),
            ("rediss://cache?tls_ca=ca.pem", verified(Some("ca.pem"))),
        ] {
            assert_eq!(options(url).tls, tls, "{url}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_read_says_what_to_write_and_no_password() {
        for url in [
            "",
            "orders",
            "redis://",
            "redis://u:hunter2@",
            "redis://u:hunter2@h:port",
            "redis://u:hunter2@h/first",
            "redis://u:hunter2@h?durability=none",
            "rediss://u:hunter2@h?tls=off",
            "redis://u:hunter2%4@h",
        ] {
            let error = RedisOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains("redis://user:password@") && !error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_prefix_needs_a_plain_name() {
        for (prefix, good) in
            [("photon", true), ("app:log", true), ("", false), ("a{b}", false), ("a/b", false)]
        {
            assert_eq!(options("redis://h").prefix(prefix).check().is_ok(), good, "{prefix:?}");
        }
    }
}
