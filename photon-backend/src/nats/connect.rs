//! Making the connection, and checking that the server can do what is needed.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{self, ClientConfig, RootCertStore};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions};
use photon_core::error::{BoxError, StoreError, StoreErrorKind, chain};
use photon_core::headers::MAX_HEADERS_BYTES;
use photon_core::ids::MAX_KEY_BYTES;
use photon_core::store::Failure;

use super::api::JetStream;
use super::denials::Denials;
use super::error::error;
use super::options::{Login, NatsOptions};

/// What a message holds beside a payload at most: key, headers, error, and what Photon and NATS add to them.
pub(super) const BESIDE: usize = MAX_KEY_BYTES + 2 * MAX_HEADERS_BYTES + Failure::MAX_ERROR_BYTES + 4096;
/// The largest payload where nobody says another, unless the server takes less.
const PAYLOAD: usize = 1 << 20;
/// The smallest one that is worth to begin with.
const LEAST_PAYLOAD: usize = 1 << 10;
/// The oldest server, for its requests by sequence and subject.
const OLDEST: (i64, i64, i64) = (2, 9, 0);

/// The connection, and the largest payload that can be sent over it.
pub(super) async fn connect(options: &NatsOptions) -> Result<(JetStream, usize), StoreError> {
    let denials = Denials::default();
    let told = denials.clone();
    let mut connect = ConnectOptions::new()
        .name("photon")
        .request_timeout(Some(options.request_timeout))
        .connection_timeout(Duration::from_secs(10))
        .ping_interval(Duration::from_secs(5))
        .max_reconnects(None)
        .reconnect_delay_callback(|attempt| {
            let delay = 50u64.saturating_mul(1 << attempt.min(6)).min(2_000);
            Duration::from_millis(delay)
        })
        .require_tls(options.tls)
        .event_callback(move |event| {
            told.note(&event);
            async move { tell(&event) }
        });
    if options.tls {
        connect = connect.tls_client_config(tls(options)?);
    }
    connect = match &options.login {
        Login::Nobody => connect,
        Login::User(user, password) => connect.user_and_password(user.clone(), password.clone()),
        Login::Token(token) => connect.token(token.clone()),
        Login::Nkey(path) => {
            let seed = std::fs::read_to_string(path).map_err(|source| unreadable("nkey", path, source))?;
            connect.nkey(seed.trim().to_owned())
        }
        Login::Credentials(path) => {
            let read = connect.credentials_file(path).await;
            read.map_err(|source| unreadable("creds", path, source))?
        }
    };
    let client = connect.connect(&options.servers[..]).await.map_err(|source| refused(options, source))?;
    let payload_limit = check(&client, options)?;
    Ok((JetStream { client, denials }, payload_limit))
}

fn check(client: &Client, options: &NatsOptions) -> Result<usize, StoreError> {
    let info = client.server_info();
    let (major, minor, patch) = OLDEST;
    if !client.is_server_compatible(major, minor, patch) {
        let message = format!(
            "the NATS server {} has version {}: Photon needs {major}.{minor} or newer",
            info.server_name, info.version
        );
        return Err(error(StoreErrorKind::Refused, message));
    }
    let possible = info.max_payload.saturating_sub(BESIDE);
    let wanted = options.payload_limit.unwrap_or(PAYLOAD.min(possible).max(LEAST_PAYLOAD));
    if wanted <= possible {
        return Ok(wanted);
    }
    let needed = wanted + BESIDE;
    let mut message = format!(
        "the NATS server takes messages of {} bytes, and one with a payload of {wanted} needs up to {needed}: set \
         max_payload: {} in the configuration of the server",
        info.max_payload,
        needed.next_multiple_of(1 << 20)
    );
    if possible >= LEAST_PAYLOAD {
        let _ = write!(message, ", or lower the largest payload of Photon to {possible} bytes");
    }
    Err(error(StoreErrorKind::Refused, message))
}

fn refused(options: &NatsOptions, source: ConnectError) -> StoreError {
    let servers = options.servers.join(", ");
    let encryption = (
        StoreErrorKind::Denied,
        "the encrypted connection could not be made: trust its certificate with ca=FILE, name the host as the \
         certificate does, or say tls=off if the server has none",
    );
    let login = format!("the server does not let this user in: {}", options.login.hint());
    let (kind, reason) = match source.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            (StoreErrorKind::Denied, &*login)
        }
        ConnectErrorKind::Tls => encryption,
        // Of the handshake that is all there is.
        _ if chain(&source).contains("certificate") => encryption,
        ConnectErrorKind::ServerParse => (StoreErrorKind::Refused, "the address is not usable"),
        ConnectErrorKind::Dns => {
            (StoreErrorKind::Unavailable, "the name is not known: check the host in the URL")
        }
        _ => (
            StoreErrorKind::Unavailable,
            "nobody answers there: check host and port in the URL, whether the server runs, and tls=on or off",
        ),
    };
    error(kind, format!("no connection to NATS at {servers}: {reason}")).with_source(source)
}

fn unreadable(name: &str, path: &Path, source: io::Error) -> StoreError {
    let message = format!("the file {} ({name}=... in the NATS URL) cannot be read", path.display());
    error(StoreErrorKind::Refused, message).with_source(source)
}

/// The provider is named, because a program may hold several and then has no default.
fn tls(options: &NatsOptions) -> Result<ClientConfig, StoreError> {
    let failed = |reason: &str, source: BoxError| {
        let message = format!("no encrypted connection to NATS: {reason}");
        error(StoreErrorKind::Refused, message).with_source(source)
    };
    let mut roots = RootCertStore::empty();
    match &options.ca {
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        Some(path) => {
            for certificate in certificates(path)? {
                let added = roots.add(certificate);
                added.map_err(|source| failed("a certificate of ca=... is not usable", source.into()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| failed("no protocol version is usable", source.into()))?
        .with_root_certificates(roots);
    let Some((certificate, key_path)) = &options.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let key = PrivateKeyDer::from_pem_file(key_path)
        .map_err(|source| unreadable("key", key_path, io::Error::other(source)))?;
    let config = builder.with_client_auth_cert(certificates(certificate)?, key);
    config.map_err(|source| failed("cert=... and key=... do not fit together", source.into()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|source| unreadable("ca or cert", path, io::Error::other(source)))
}

/// What happens to the connection; outages are told by those whose work they hold up.
fn tell(event: &async_nats::Event) {
    if matches!(event, async_nats::Event::SlowConsumer(_)) {
        tracing::warn!(%event, "NATS drops messages for this process: it will read them again");
    } else {
        tracing::debug!(%event, "NATS");
    }
}
