//! Engines named by a URL, and URLs that can be shown.

use std::fmt;
use std::path::PathBuf;

/// An engine as a URL names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Nothing outlives the process.
    Memory,
    /// One file.
    Sqlite {
        /// The path of the file.
        path: PathBuf,
        /// Whether a commit waits for the disk.
        full_durability: bool,
        /// Whether the file is the application's.
        shared: bool,
    },
    /// A database of a server.
    Postgres(SecretUrl),
    /// JetStream of a server or a cluster.
    Nats(SecretUrl),
    /// A Redis or Valkey server.
    Redis(SecretUrl),
}

/// A URL that may hold a password: it is shown without.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretUrl(pub(crate) String);

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.0))
    }
}

impl Engine {
    /// Reads `memory:`, `sqlite:path`, `sqlite://path?durability=normal&shared=true`, `postgres://...`, `nats://...`,
    /// `redis://...` or `rediss://...`.
    pub(crate) fn parse(url: &str) -> Result<Engine, String> {
        let known = "write \"sqlite:orders.db\", \"postgres://user:password@host/database\", \"nats://host\", \
                     \"redis://user:password@host\" or \"memory:\"";
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(format!("{:?} names no engine: {known}", redact(url)));
        };
        match scheme {
            "memory" => match rest {
                "" | "//" => Ok(Engine::Memory),
                _ => Err(format!("{:?}: the memory engine takes nothing after \"memory:\"", redact(url))),
            },
            "sqlite" => sqlite(url, rest),
            // What it says is read by the engine.
            "postgres" | "postgresql" => Ok(Engine::Postgres(SecretUrl(url.to_owned()))),
            "nats" | "tls" => Ok(Engine::Nats(SecretUrl(url.to_owned()))),
            "redis" | "rediss" => Ok(Engine::Redis(SecretUrl(url.to_owned()))),
            _ => Err(format!("{:?}: there is no engine for {scheme:?} in this build: {known}", redact(url))),
        }
    }
}

fn sqlite(url: &str, rest: &str) -> Result<Engine, String> {
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(format!("{url:?} names no file: write for instance \"sqlite:orders.db\""));
    }
    if path == ":memory:" {
        return Err(format!("{url:?}: a SQLite database in memory is lost at once: write \"memory:\""));
    }
    let (mut full_durability, mut shared) = (true, false);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair {
            "durability=full" => full_durability = true,
            "durability=normal" => full_durability = false,
            "shared=true" => shared = true,
            "shared=false" => shared = false,
            _ => {
                return Err(format!(
                    "{url:?}: {pair:?} is unknown: durability=full or durability=normal, shared=true or shared=false"
                ));
            }
        }
    }
    Ok(Engine::Sqlite { path: path.into(), full_durability, shared })
}

/// The URL without what may be secret: user and password, and parameters that sound like one.
fn redact(url: &str) -> String {
    let mut shown = match url.split_once("://") {
        // The last @, because a password may hold one too.
        Some((scheme, rest)) if !scheme.starts_with("sqlite") => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://***@{host}"),
            None => url.to_owned(),
        },
        _ => url.to_owned(),
    };
    let mut from = 0;
    while let Some(equals) = shown[from..].find('=').map(|at| from + at) {
        let name_start = shown[..equals].rfind(['?', '&', ';', ' ', ':']).map_or(0, |at| at + 1);
        let name = shown[name_start..equals].to_ascii_lowercase();
        let value_end = shown[equals..].find(['&', ';', ' ']).map_or(shown.len(), |at| equals + at);
        from = equals + 1;
        if ["pass", "pwd", "secret", "token", "key", "auth", "cred"].iter().any(|word| name.contains(word)) {
            shown.replace_range(equals + 1..value_end, "***");
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_engines() {
        let sqlite = |path: &str, full_durability| {
            Ok(Engine::Sqlite { path: path.into(), full_durability, shared: false })
        };
        assert_eq!(Engine::parse("memory:"), Ok(Engine::Memory));
        assert_eq!(Engine::parse("memory://"), Ok(Engine::Memory));
        assert_eq!(Engine::parse("sqlite:orders.db"), sqlite("orders.db", true));
        assert_eq!(Engine::parse("sqlite://orders.db"), sqlite("orders.db", true));
        assert_eq!(Engine::parse("sqlite:///var/o.db?durability=normal"), sqlite("/var/o.db", false));
        assert_eq!(Engine::parse("sqlite:o.db?durability=full"), sqlite("o.db", true));
        let url = "postgres://me:hunter2@host/db";
        let postgres = Engine::parse(url).unwrap();
        assert_eq!(postgres, Engine::Postgres(SecretUrl(url.to_owned())));
        assert_eq!(format!("{postgres:?}"), "Postgres(postgres://***@host/db)");
        let nats = Engine::parse("nats://me:hunter2@a,b:4223?replicas=3").unwrap();
        assert_eq!(format!("{nats:?}"), "Nats(nats://***@a,b:4223?replicas=3)");
        for scheme in ["redis", "rediss"] {
            let redis = Engine::parse(&format!("{scheme}://me:hunter2@host")).unwrap();
            assert_eq!(format!("{redis:?}"), format!("Redis({scheme}://***@host)"));
        }
    }

    #[test]
    fn a_url_that_does_not_parse_says_what_to_write() {
        for (url, part) in [
            ("orders.db", "names no engine"),
            ("", "names no engine"),
            ("mysql://u:p@h/db", "no engine for \"mysql\""),
            ("sqlite:", "names no file"),
            ("sqlite://?durability=full", "names no file"),
            ("sqlite::memory:", "write \"memory:\""),
            ("sqlite:o.db?durability=none", "durability=none"),
            ("memory:x", "takes nothing"),
        ] {
            let error = Engine::parse(url).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
        }
        assert!(!Engine::parse("mysql://u:hunter2@h/db").unwrap_err().contains("hunter2"));
    }

    #[test]
    fn secrets_in_urls_are_not_shown() {
        for (url, shown) in [
            ("postgres://me:hunter2@host:5432/db", "postgres://***@host:5432/db"),
            ("postgres://me:hun@ter2@host/db", "postgres://***@host/db"),
            ("redis://:hunter2@host", "redis://***@host"),
            ("nats://host?token=hunter2&tls=on", "nats://host?token=***&tls=on"),
            (
                "postgres://host/db?sslmode=on&sslpassword=hunter2",
                "postgres://host/db?sslmode=on&sslpassword=***",
            ),
            ("host=h password=hunter2 user=me", "host=h password=*** user=me"),
            ("sqlite:///data/a@b.db", "sqlite:///data/a@b.db"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }
}
