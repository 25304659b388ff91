//! Both ends of TLS that ends here: certificates for clients, and connections to
//! hosts that prove who they are.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    authority::{Alpn, Authority, AuthorityError},
    name::Name,
};

/// Both ends.
#[derive(Debug)]
pub struct Tls {
    /// What clients see.
    pub authority: Authority,
    /// Who hosts are believed to be; none: nobody.
    roots: RwLock<Option<Arc<RootCertStore>>>,
    sessions: RwLock<Sessions>,
}

/// Configurations, by whether HTTP/1 and HTTP/2 are offered. Kept, so that TLS
/// itself need not begin anew with a host that was there before.
type Sessions = [Option<Arc<ClientConfig>>; 4];

/// Why a host is not believed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate would do.
    #[error("no certificate can be verified: there are no roots")]
    NoRoots,
    /// It is not who it should be.
    #[error("the host's certificate is not valid: {0}")]
    Invalid(String),
    /// Anything else.
    #[error("no TLS with the host: {0}")]
    Failed(#[from] io::Error),
    /// The library refuses.
    #[error("no TLS with the host: {0}")]
    Library(#[from] rustls::Error),
}

/// What a host speaks over a connection, and what a client said that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `http/1.1`
    pub http1: bool,
    /// `h2`
    pub http2: bool,
}

impl Offer {
    /// One protocol, or none that has a name.
    #[must_use]
    pub fn only(alpn: Alpn) -> Self {
        Self {
            http1: alpn == Alpn::Http1,
            http2: alpn == Alpn::Http2,
        }
    }

    fn protocols(self) -> Vec<Vec<u8>> {
        // The client's order is not kept: a host decides by its own.
        let all = [(self.http2, Alpn::Http2), (self.http1, Alpn::Http1)];
        let offered = all.into_iter().filter(|(offered, _)| *offered);
        offered.flat_map(|(_, alpn)| alpn.protocols()).collect()
    }

    fn index(self) -> usize {
        usize::from(self.http1) | usize::from(self.http2) << 1
    }
}

impl Tls {
    /// Believes no host yet.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn new() -> Result<Self, AuthorityError> {
        Ok(Self {
            authority: Authority::new()?,
            roots: RwLock::default(),
            sessions: RwLock::default(),
        })
    }

    /// Believes hosts whose certificates these have signed: PEM. What is no
    /// certificate in it is left out.
    pub fn believe(&self, pem: &str) {
        let mut store = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).flatten();
        let (added, ignored) = store.add_parsable_certificates(certificates);
        tracing::debug!(added, ignored, "root certificates");
        let store = (added > 0).then(|| Arc::new(store));
        *self.roots.write().unwrap_or_else(PoisonError::into_inner) = store;
        *self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Sessions::default();
    }

    /// Speaks TLS with a host, and makes sure that it is that host.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub async fn connect<S>(
        &self,
        host: &Name,
        offer: Offer,
        stream: S,
    ) -> Result<(TlsStream<S>, Alpn), TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.config(offer)?;
        let server = ServerName::try_from(host.to_string())
            .map_err(|error| TlsError::Invalid(error.to_string()))?;
        let connected = TlsConnector::from(config).connect(server, stream).await;
        let stream = connected.map_err(invalid)?;
        let alpn = Alpn::of(stream.get_ref().1.alpn_protocol());
        Ok((stream, alpn))
    }

    fn config(&self, offer: Offer) -> Result<Arc<ClientConfig>, TlsError> {
        let known = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &known[offer.index()] {
            return Ok(config.clone());
        }
        drop(known);
        let mut known = self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Under that lock: what replaces the roots then forgets this.
        let roots = self.roots.read().unwrap_or_else(PoisonError::into_inner);
        let roots = roots.clone().ok_or(TlsError::NoRoots)?;
        let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = offer.protocols();
        let config = Arc::new(config);
        known[offer.index()] = Some(config.clone());
        Ok(config)
    }
}

/// A certificate that does not prove it, or something else.
fn invalid(error: io::Error) -> TlsError {
    let library = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match library {
        Some(rustls::Error::InvalidCertificate(why)) => TlsError::Invalid(said(why)),
        Some(rustls::Error::NoCertificatesPresented) => TlsError::Invalid("it has none".into()),
        _ => TlsError::Failed(error),
    }
}

/// In words that are the same each time: the library's have the time in them, and
/// refusals for one reason would be as many as there are seconds.
fn said(why: &CertificateError) -> String {
    use CertificateError as Why;
    match why {
        Why::Expired | Why::ExpiredContext { .. } => "it has expired".into(),
        Why::NotValidYet | Why::NotValidYetContext { .. } => "it is not valid yet".into(),
        Why::NotValidForName | Why::NotValidForNameContext { .. } => "it is for other names".into(),
        Why::UnknownIssuer => "nobody who is believed has signed it".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn what_is_wrong_with_a_certificate_is_said_in_the_same_words_each_time() {
        let expired = |now| CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(Duration::from_secs(now)),
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(1)),
        };
        assert_eq!(said(&expired(2)), "it has expired");
        assert_eq!(said(&expired(2)), said(&expired(3)));
        assert_eq!(
            said(&CertificateError::Revoked),
            CertificateError::Revoked.to_string()
        );
    }
}
