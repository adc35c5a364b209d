//! Which server certificates limpet's clients accept: those of an authority, as in webpki, and, as in Go and curl, a
//! certificate that is itself configured as trusted.
//!
//! Without I/O except for the system's certificates, and without policy: the caller decides whom to trust. Probes and
//! hooks trust every server, with the features of Go's client.

mod cbc;
mod unverified;

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use self::unverified::Unverified;
pub use self::unverified::unverified;

/// Whether the system's certificate authorities count beside those that are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// They count. A machine without any trusts only the named ones.
    Trusted,
    /// They do not count.
    Ignored,
}

/// The settings of a client that trusts servers with certificates of `named`. `identity` is PEM with the client's
/// certificate and key. Blocks if the system's authorities count.
///
/// # Errors
///
/// No certificate of `named` can be used, or the identity cannot.
pub fn client_config(
    named: Vec<CertificateDer<'static>>,
    system: System,
    identity: Option<&[u8]>,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier(named, system, provider)?);
    with_identity(config, identity)
}

/// The same for a client that accepts every server: `insecure-skip-tls-verify` of a kubeconfig.
///
/// # Errors
///
/// The identity cannot be used.
pub fn any_server(identity: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    with_identity(config.dangerous().with_custom_certificate_verifier(Arc::new(Unverified)), identity)
}

fn with_identity(
    config: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<&[u8]>,
) -> Result<ClientConfig, Error> {
    let Some(pem) = identity else { return Ok(config.with_no_client_auth()) };
    let broken = |error| Error::General(format!("the client's certificate cannot be read: {error}"));
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(broken)?;
    config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pem).map_err(broken)?)
}

/// Verifies servers by `named`. Blocks if the system's authorities count.
///
/// # Errors
///
/// No certificate of `named` can be used.
pub fn verifier(
    named: Vec<CertificateDer<'static>>,
    system: System,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    // As in Go, an unreadable certificate does not invalidate the others.
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(named.iter().cloned());
    if usable == 0 && !named.is_empty() {
        return Err(Error::General("no certificate of the authorities can be used".to_owned()));
    }
    let authorities: Arc<dyn ServerCertVerifier> = match system {
        System::Trusted => {
            let parsable = named.iter().filter(|der| RootCertStore::empty().add((*der).clone()).is_ok()).cloned();
            Arc::new(rustls_platform_verifier::Verifier::new_with_extra_roots(parsable, provider)?)
        }
        System::Ignored => {
            let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
            built.map_err(|error| Error::General(error.to_string()))?
        }
    };
    Ok(Arc::new(Named { authorities, named }))
}

/// Accepts certificates of the authorities, and the named certificates themselves.
#[derive(Debug)]
struct Named {
    authorities: Arc<dyn ServerCertVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(_) if self.named.iter().any(|named| named == end_entity) => check(end_entity, server_name, now),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Go's checks of a certificate that is itself trusted: its validity, its names, and that it is a server's if it
/// states its usage. Its signer, and whether it is an authority, do not matter.
fn check(der: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<ServerCertVerified, Error> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateError::BadEncoding)?;
    let (now, validity) = (i64::try_from(now.as_secs()).unwrap_or(i64::MAX), certificate.validity());
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    verify_server_name(&ParsedCertificate::try_from(der)?, name)?;
    match certificate.extended_key_usage() {
        Ok(Some(usage)) if !usage.value.server_auth && !usage.value.any => Err(CertificateError::InvalidPurpose.into()),
        Ok(_) => Ok(ServerCertVerified::assertion()),
        Err(_) => Err(CertificateError::BadEncoding.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
