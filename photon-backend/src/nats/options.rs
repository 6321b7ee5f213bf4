//! What can be set for a [`NatsStore`](super::NatsStore), and its URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use photon_core::error::{StoreError, StoreErrorKind};

use super::error::error;
use super::names::namespace_problem;

/// The port that NATS servers listen on.
const PORT: u16 = 4222;

/// What can be set for a [`NatsStore`](super::NatsStore). `Debug` shows no secrets.
///
/// ```
/// # use photon_backend::nats::NatsOptions;
/// let options = NatsOptions::from_url("nats://photon:secret@nats-1,nats-2:4223?replicas=3")?;
/// # Ok::<(), photon_core::error::StoreError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NatsOptions {
    pub(super) servers: Vec<String>,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
    pub(super) login: Login,
    pub(super) namespace: String,
    pub(super) replicas: usize,
    pub(super) payload_limit: Option<usize>,
    pub(super) dedup_window: Duration,
    pub(super) request_timeout: Duration,
}

/// How the client says who it is.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    Nobody,
    User(String, String),
    Token(String),
    /// The file with the seed of an nkey.
    Nkey(PathBuf),
    /// A file of credentials, as `nsc` writes it.
    Credentials(PathBuf),
}

impl Login {
    /// What to look at when the server turns it down.
    pub(super) fn hint(&self) -> String {
        match self {
            Login::Nobody => "name a user in the URL, or give a token, nkey or creds".to_owned(),
            Login::User(..) => "check user and password in the URL".to_owned(),
            Login::Token(_) => "check the token in the URL".to_owned(),
            Login::Nkey(path) => format!("check the seed in {}", path.display()),
            Login::Credentials(path) => format!("check the credentials in {}", path.display()),
        }
    }
}

impl NatsOptions {
    /// Reads a URL: `nats://[user:password@]host[:port][,host[:port]...][?name=value&...]`.
    ///
    /// User and password may be percent-encoded. The names are
    /// - `tls=on` or `off`: by default it is on unless all hosts are this machine; so it is with the scheme `tls`;
    /// - `ca=path`: certificates (PEM) to trust instead of those of the system;
    /// - `cert=path` and `key=path`: the certificate of the client and its key (PEM);
    /// - `token=...`, `nkey=path` (a seed), `creds=path`: other ways to log in;
    /// - `namespace=...`, `replicas=...`: see the methods of these names.
    ///
    /// # Errors
    /// `Refused` if it does not parse; the message shows no secrets.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        Self::parse(url).map_err(|message| error(StoreErrorKind::Refused, format!("the NATS URL: {message}")))
    }

    fn parse(url: &str) -> Result<Self, String> {
        let example = "write for instance \"nats://user:password@host:4222\"";
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| format!("it has no \"nats://\": {example}"))?;
        if !matches!(scheme, "nats" | "tls") {
            return Err(format!("the scheme {scheme:?} is unknown: {example}"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @, because a password may hold one, too.
        let (login, hosts) = match place.rsplit_once('@') {
            Some((login, hosts)) => (login_of(login)?, hosts),
            None => (Login::Nobody, place),
        };
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        let servers: Vec<(String, u16)> = hosts.split(',').map(server).collect::<Result<_, _>>()?;
        let mut options = Self {
            tls: scheme == "tls" || !servers.iter().all(|(host, _)| is_loopback(host)),
            servers: servers.iter().map(|(host, port)| format!("nats://{host}:{port}")).collect(),
            ca: None,
            certificate: None,
            login,
            namespace: "photon".to_owned(),
            replicas: 1,
            payload_limit: None,
            dedup_window: Duration::from_secs(600),
            request_timeout: Duration::from_secs(5),
        };
        let (mut certificate, mut key) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value =
                decode(value).ok_or_else(|| format!("the value of {name:?} is not percent-encoded text"))?;
            match name {
                "tls" => options.tls = switch(&value)?,
                "ca" => options.ca = Some(value.into()),
                "cert" => certificate = Some(value.into()),
                "key" => key = Some(value.into()),
                "token" => options.login = Login::Token(value),
                "nkey" => options.login = Login::Nkey(value.into()),
                "creds" => options.login = Login::Credentials(value.into()),
                "namespace" => options = options.namespace(&value),
                "replicas" => {
                    options.replicas =
                        value.parse().map_err(|_| format!("replicas={value:?}: write 1, 3 or 5"))?;
                }
                _ => {
                    return Err(format!(
                        "{name:?} is unknown: tls, ca, cert, key, token, nkey, creds, namespace, replicas"
                    ));
                }
            }
        }
        options.certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("cert and key belong together: give both or none".to_owned()),
        };
        match options.problem() {
            Some(problem) => Err(problem),
            None => Ok(options),
        }
    }

    /// The name that streams and subjects begin with, 1 to 32 letters, digits and `_`: programs with different
    /// ones share nothing. Default: `photon`.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// On how many servers of a cluster a stream that is made is kept, 1 to 5. Default: 1. Streams that exist keep
    /// what they have.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// The largest payload that will be published, in bytes: the server must take messages that hold it with key,
    /// headers and error, which is checked at open. Default: what the server takes, at most 1 MiB; see
    /// [`NatsStore::payload_limit`](super::NatsStore::payload_limit).
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = Some(bytes);
        self
    }

    /// For how long after an event with a dedup id another one with the same id in the same shard is not stored.
    /// It is a setting of the stream of a topic and counts when that is made. Default: 10 minutes.
    #[must_use]
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.dedup_window = window;
        self
    }

    /// How long to wait for an answer of the server. Default: 5 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// What is wrong with them.
    pub(super) fn problem(&self) -> Option<String> {
        if let Some(problem) = namespace_problem(&self.namespace) {
            return Some(format!("the namespace {:?} is not usable: {problem}", self.namespace));
        }
        if !(1..=5).contains(&self.replicas) {
            return Some(format!("{} replicas are not possible: 1, 3 or 5", self.replicas));
        }
        None
    }
}

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let login = match self.login {
            Login::Nobody => "none",
            Login::User(..) => "user and password",
            Login::Token(_) => "token",
            Login::Nkey(_) => "nkey",
            Login::Credentials(_) => "credentials",
        };
        f.debug_struct("NatsOptions")
            .field("servers", &self.servers)
            .field("tls", &self.tls)
            .field("login", &login)
            .field("namespace", &self.namespace)
            .field("replicas", &self.replicas)
            .field("payload_limit", &self.payload_limit)
            .field("dedup_window", &self.dedup_window)
            .finish_non_exhaustive()
    }
}

fn login_of(text: &str) -> Result<Login, String> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    match (decode(user), decode(password)) {
        // As other NATS clients read it.
        (Some(token), Some(none)) if none.is_empty() && !text.contains(':') => Ok(Login::Token(token)),
        (Some(user), Some(password)) => Ok(Login::User(user, password)),
        _ => Err("user and password must be percent-encoded: a % in them is %25".to_owned()),
    }
}

fn server(text: &str) -> Result<(String, u16), String> {
    let refuse = || format!("{text:?} is not a server: write host or host:port");
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| refuse())?),
        _ => (text, PORT),
    };
    let fits = !host.is_empty() && !host.contains(['/', '@', '?', ' ']);
    if fits { Ok((host.to_owned(), port)) } else { Err(refuse()) }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("tls={value:?}: write on or off")),
    }
}

/// Reads percent-encoded text.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let options = NatsOptions::from_url("nats://localhost").unwrap();
        assert_eq!((&options.servers[..], options.tls), (&["nats://localhost:4222".to_owned()][..], false));
        assert!(options.login == Login::Nobody);
        let options =
            NatsOptions::from_url("nats://me:p%40ss:w@a,b:4333,[::1]:5?replicas=3&namespace=other").unwrap();
        assert_eq!(options.servers, ["nats://a:4222", "nats://b:4333", "nats://[::1]:5"]);
        assert!(options.tls && options.login == Login::User("me".to_owned(), "p@ss:w".to_owned()));
        assert_eq!((options.replicas, options.namespace.as_str()), (3, "other"));
        assert!(!NatsOptions::from_url("nats://a?tls=off").unwrap().tls);
        assert!(NatsOptions::from_url("tls://127.0.0.1").unwrap().tls);
        let creds = NatsOptions::from_url("nats://a?creds=/etc/my%20creds").unwrap();
        assert!(creds.login == Login::Credentials("/etc/my creds".into()));
        assert!(
            NatsOptions::from_url("nats://hunter2@a").unwrap().login == Login::Token("hunter2".to_owned())
        );
    }

    #[test]
    fn a_url_that_does_not_parse_says_what_to_write_and_no_secrets() {
        for (url, part) in [
            ("localhost", "has no \"nats://\""),
            ("http://localhost", "scheme \"http\" is unknown"),
            ("nats://", "is not a server"),
            ("nats://u:hunter2@", "is not a server"),
            ("nats://u:hunter2@a:port", "is not a server"),
            ("nats://u:hunter2%@a", "percent-encoded"),
            ("nats://u:hunter2@a?replicas=x", "replicas"),
            ("nats://u:hunter2@a?replicas=9", "9 replicas"),
            ("nats://a?tls=yes", "write on or off"),
            ("nats://a?tokem=hunter2", "\"tokem\" is unknown"),
            ("nats://a?cert=c", "belong together"),
            ("nats://a?namespace=a.b", "namespace \"a.b\""),
        ] {
            let error = NatsOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hunter2"), "{url}: {error}");
        }
        let shown = format!("{:?}", NatsOptions::from_url("nats://me:hunter2@a?token=hunter2").unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
