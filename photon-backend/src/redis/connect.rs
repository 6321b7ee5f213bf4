//! Making connections.

use std::path::Path;
use std::sync::Arc;

use photon_core::error::StoreError;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::error::{Target, refused};
use super::options::{RedisOptions, Tls};

/// Makes connections to one server.
pub(super) struct Connector {
    address: (String, u16),
    login: RedisConnectionInfo,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    target: Target,
}

/// A connection that many commands share, and what drives it. Dropped, it is closed.
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Whether it can still be used, as far as is known.
    pub(super) fn is_alive(&self) -> bool {
        !self.driver.is_finished()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Connector {
    pub(super) fn new(options: &RedisOptions, target: Target) -> Result<Self, StoreError> {
        let mut login = RedisConnectionInfo::default().set_db(options.database).set_skip_set_lib_name();
        if let Some(user) = &options.user {
            login = login.set_username(user);
        }
        if let Some(password) = &options.password {
            login = login.set_password(password);
        }
        let tls = match &options.tls {
            Tls::Off => None,
            Tls::Verified { roots } => {
                let name = ServerName::try_from(options.host.clone()).map_err(|_| {
                    refused(format!("{:?} is no name that a certificate could have", options.host))
                })?;
                Some((TlsConnector::from(Arc::new(tls_config(roots.as_deref())?)), name))
            }
        };
        Ok(Self { address: (options.host.clone(), options.port), login, tls, target })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// A connection for commands.
    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        self.in_time(async {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(Some(self.target.timeout()));
            let (commands, driver) =
                MultiplexedConnection::new_with_config(&self.login, self.stream().await?, config).await?;
            Ok(Connection { commands, driver: tokio::spawn(driver) })
        })
        .await
    }

    /// A connection that listens.
    pub(super) async fn listen(&self) -> Result<PubSub, StoreError> {
        self.in_time(async { PubSub::new(&self.login, self.stream().await?).await }).await
    }

    async fn in_time<T>(&self, making: impl Future<Output = Result<T, RedisError>>) -> Result<T, StoreError> {
        let made = tokio::time::timeout(self.target.timeout(), making).await.unwrap_or_else(|_| {
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time").into())
        });
        made.map_err(|error| self.target.explain_connect(error))
    }

    async fn stream(&self) -> Result<Box<dyn Stream>, RedisError> {
        let stream = TcpStream::connect((self.address.0.as_str(), self.address.1)).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((tls, name)) => Box::new(tls.connect(name.clone(), stream).await?),
        })
    }
}

fn tls_config(roots: Option<&Path>) -> Result<ClientConfig, StoreError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(file) => {
            let unreadable = |error: &dyn std::fmt::Display| {
                refused(format!("tls_ca={}: {error}: name a file of certificates (PEM)", file.display()))
            };
            for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))? {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                trusted.add(certificate).map_err(|error| unreadable(&error))?;
            }
            if trusted.is_empty() {
                return Err(unreadable(&"it holds no certificate"));
            }
        }
        None => {
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    // Named, because a program may hold two providers, and then none is the default.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(format!("encryption cannot be set up: {error}")))?;
    Ok(config.with_root_certificates(trusted).with_no_client_auth())
}
