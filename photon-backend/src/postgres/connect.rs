//! Making connections.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use photon_core::error::StoreError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{Target, refused};
use super::options::{PostgresOptions, Tls};

/// How long a request to cancel may take. Nobody waits for it.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Makes connections to one database.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    target: Target,
}

/// A connection. Dropped, it is closed, whatever it does.
pub(super) struct Connection {
    pub(super) client: Client,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What is done with messages that the server sends by itself.
pub(super) type OnMessage = Box<dyn FnMut(AsyncMessage) + Send>;

impl Connector {
    pub(super) fn new(options: &PostgresOptions, target: Target) -> Result<Self, StoreError> {
        let tls = match &options.tls {
            Tls::Off => None,
            Tls::Verified { roots } => Some(MakeRustlsConnect::new(tls_config(roots.as_deref())?)),
        };
        Ok(Self { config: options.config.clone(), tls, target })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Connects, within the time that one operation has.
    pub(super) async fn connect(&self, on_message: OnMessage) -> Result<Connection, StoreError> {
        let connecting = async {
            match &self.tls {
                None => {
                    self.config.connect(NoTls).await.map(|(client, driver)| start(client, driver, on_message))
                }
                Some(tls) => self
                    .config
                    .connect(tls.clone())
                    .await
                    .map(|(client, driver)| start(client, driver, on_message)),
            }
        };
        match tokio::time::timeout(self.target.timeout(), connecting).await {
            Ok(connected) => connected.map_err(|error| self.target.explain_connect(error)),
            Err(_) => Err(self.target.is_late(super::error::Effect::Read)),
        }
    }

    /// Asks the server to stop what it does on another connection, in the background.
    pub(super) fn cancel(&self, token: CancelToken) {
        let tls = self.tls.clone();
        tokio::spawn(tokio::time::timeout(CANCEL_LIMIT, async move {
            match tls {
                None => token.cancel_query(NoTls).await,
                Some(tls) => token.cancel_query(tls).await,
            }
        }));
    }
}

fn start<S, T>(
    client: Client,
    mut driver: tokio_postgres::Connection<S, T>,
    mut on_message: OnMessage,
) -> Connection
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let driver = tokio::spawn(async move {
        let messages = futures::stream::poll_fn(move |cx| driver.poll_message(cx));
        futures::pin_mut!(messages);
        // Whoever waits for an answer gets the error; a connection that is idle is found closed.
        while let Some(Ok(message)) = futures::StreamExt::next(&mut messages).await {
            on_message(message);
        }
    });
    Connection { client, driver }
}

fn tls_config(roots: Option<&Path>) -> Result<ClientConfig, StoreError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(file) => {
            let unreadable = |error: &dyn std::fmt::Display| {
                refused(format!("sslrootcert={}: {error}: name a file of certificates (PEM)", file.display()))
            };
            let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))?;
            for certificate in certificates {
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
