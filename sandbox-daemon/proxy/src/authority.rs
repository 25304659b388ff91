//! Certificates that clients see where credentials are added. The key is made when
//! the proxy starts, and never leaves its memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::NoServerSessionStorage,
    sign::{CertifiedKey, SingleCertAndKey},
};
use time::OffsetDateTime;

use crate::name::Name;

/// Who has made the certificates, as clients show it.
const NAME: &str = "sandboxd";

/// How long a certificate is good for; some clients refuse more than 398 days.
const LEAF: time::Duration = time::Duration::days(90);

/// How long the authority's own is: longer than a proxy runs.
const OWN: time::Duration = time::Duration::days(3650);

/// How far clocks may be apart.
const SLACK: time::Duration = time::Duration::days(1);

/// After this a certificate is made anew.
const FRESH: Duration = Duration::from_hours(24);

/// Certificates that are kept.
const MAX_KEPT: usize = 1024;

/// Makes certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Of all of its certificates.
    key: KeyPair,
    kept: Mutex<HashMap<(Name, Alpn), Kept>>,
}

struct Kept {
    made: Instant,
    config: Arc<ServerConfig>,
}

/// What is spoken inside of TLS (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// The client did not say, or not what the host speaks.
    None,
    /// `http/1.1`
    Http1,
    /// `h2`
    Http2,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It cannot be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("cannot use a certificate that was made")]
    Use(#[from] rustls::Error),
}

impl Alpn {
    /// As the protocol has it.
    #[must_use]
    pub fn of(protocol: Option<&[u8]>) -> Self {
        match protocol {
            Some(b"http/1.1") => Self::Http1,
            Some(b"h2") => Self::Http2,
            _ => Self::None,
        }
    }

    /// As the protocol has it.
    #[must_use]
    pub fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::None => Vec::new(),
            Self::Http1 => vec![b"http/1.1".to_vec()],
            Self::Http2 => vec![b"h2".to_vec()],
        }
    }
}

impl Authority {
    /// Makes a new one.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn new() -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        valid_for(&mut params, OWN);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params.distinguished_name.push(DnType::CommonName, NAME);
        Ok(Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
            key: KeyPair::generate()?,
            kept: Mutex::default(),
        })
    }

    /// Its own certificate: PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Speaks for a host.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn speak_for(&self, host: &Name, alpn: Alpn) -> Result<Arc<ServerConfig>, AuthorityError> {
        let key = (host.clone(), alpn);
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().get(&key).map(|it| (it.made, it.config.clone()));
        if let Some((_, config)) = kept.filter(|(made, _)| made.elapsed() < FRESH) {
            return Ok(config);
        }
        let config = Arc::new(self.config(host, alpn)?);
        let mut kept = lock();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        let made = Instant::now();
        let config_kept = config.clone();
        kept.insert(
            key,
            Kept {
                made,
                config: config_kept,
            },
        );
        Ok(config)
    }

    fn config(&self, host: &Name, alpn: Alpn) -> Result<ServerConfig, AuthorityError> {
        let mut params = CertificateParams::new([host.to_string()])?;
        valid_for(&mut params, LEAF);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params
            .distinguished_name
            .push(DnType::OrganizationName, NAME);
        let leaf = params.signed_by(&self.key, &self.issuer)?;
        let provider = ring::default_provider();
        let key = PrivateKeyDer::Pkcs8(self.key.serialize_der().into());
        let chain: Vec<CertificateDer<'static>> =
            vec![leaf.der().clone(), self.issuer.der().clone()];
        let certified = CertifiedKey::new(chain, provider.key_provider.load_private_key(key)?);
        let mut config = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = alpn.protocols();
        // A connection of one sandbox has nothing to do with one of another.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

fn valid_for(params: &mut CertificateParams, duration: time::Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - SLACK;
    params.not_after = now + duration;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;

    #[test]
    fn a_certificate_is_made_once_for_a_host_and_protocol() {
        let authority = Authority::new().unwrap();
        let speak = |host, alpn| authority.speak_for(&name(host), alpn).unwrap();
        let first = speak("a.test", Alpn::Http1);
        assert!(Arc::ptr_eq(&first, &speak("a.test", Alpn::Http1)));
        assert!(!Arc::ptr_eq(&first, &speak("a.test", Alpn::Http2)));
        assert!(!Arc::ptr_eq(&first, &speak("b.test", Alpn::Http1)));
        assert_eq!(speak("a.test", Alpn::Http2).alpn_protocols, [b"h2"]);
    }

    #[test]
    fn every_authority_has_its_own_key() {
        let one = Authority::new().unwrap().pem();
        assert!(one.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_ne!(one, Authority::new().unwrap().pem());
    }

    #[test]
    fn names_of_other_hosts_do_not_fill_the_memory() {
        let authority = Authority::new().unwrap();
        for number in 0..MAX_KEPT + 2 {
            let host = name(&format!("h{number}.test"));
            authority.speak_for(&host, Alpn::None).unwrap();
        }
        assert!(authority.kept.lock().unwrap().len() <= MAX_KEPT);
    }
}
