//! Configuration of rustls, and verifiers of the peer's key: TLS 1.3, raw public keys on both sides, no state that outlives the connection.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme, SupportedCipherSuite,
};
use sos_wire::{Key, StreamEndpoint};

use super::identity::Identity;
use super::{PairKeyName, parse_server_name};

/// Cipher suites and key exchange.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        cipher_suites: suites(has_aes()),
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    })
});

/// Cipher suites in the dialer's order of preference, which determines the choice. Without AES instructions, AES is several times slower
/// than ChaCha20.
fn suites(has_aes: bool) -> Vec<SupportedCipherSuite> {
    let mut suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !has_aes {
        suites.reverse();
    }
    suites
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// The dialer's side: it knows the acceptor's key.
pub(super) fn client(identity: Identity) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER));
    let builder = builder.with_protocol_versions(&[&TLS13])?.dangerous();
    let mut config = builder
        .with_custom_certificate_verifier(Arc::new(Exactly(identity.other)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity.own)));
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    Ok(config)
}

/// The acceptor's side: the dialer names the pair key, which `expected` then contains.
pub(super) fn server(expected: &Arc<Expected>) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER));
    let mut config = builder
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::clone(expected) as Arc<dyn ClientCertVerifier>)
        .with_cert_resolver(Arc::clone(expected) as Arc<dyn ResolvesServerCert>);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    Ok(config)
}

/// ALPN of a QUIC connection (required by RFC 9001, 8.1).
const ALPN: &[u8] = b"sos";

/// The dialer's side of a QUIC handshake, with both keys from the pair key.
pub(crate) fn quic_client(pair: &Key) -> Result<ClientConfig, Error> {
    let mut config = client(Identity::derive(pair, StreamEndpoint::Dialer)?)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// The acceptor's side of a QUIC handshake.
pub(crate) fn quic_server(expected: &Arc<Expected>) -> Result<ServerConfig, Error> {
    let mut config = server(expected)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn is_key(presented: &CertificateDer<'_>, expected: &CertificateDer<'_>) -> Result<(), Error> {
    // These are public keys: the comparison's duration reveals no secret.
    if presented == expected {
        return Ok(());
    }
    Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
}

fn is_signed(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    verify_tls13_signature_with_raw_key(message, &key, signature, &PROVIDER.signature_verification_algorithms)
}

fn never_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig))
}

/// Methods common to the verifiers of both sides, which have different traits.
macro_rules! signed_by_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            never_tls12()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            is_signed(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// Accepts exactly one key.
#[derive(Debug)]
struct Exactly(CertificateDer<'static>);

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        is_key(presented, &self.0).map(|()| ServerCertVerified::assertion())
    }

    signed_by_raw_keys!();
}

/// Looks up the pair key that a dialer names, if the dialer may name it.
pub(crate) type FindKey = Box<dyn Fn(PairKeyName) -> Option<Key> + Send + Sync>;

/// Expected key of one dialer, known once the dialer has named a pair key.
pub(crate) struct Expected {
    find: FindKey,
    named: OnceLock<(PairKeyName, Identity)>,
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expected").field("named", &self.named().copied()).finish_non_exhaustive()
    }
}

impl Expected {
    pub(crate) fn new(find: FindKey) -> Arc<Self> {
        Arc::new(Self { find, named: OnceLock::new() })
    }

    /// The pair key that the dialer has named.
    pub(crate) fn named(&self) -> Option<&PairKeyName> {
        self.named.get().map(|(name, _)| name)
    }
}

impl ResolvesServerCert for Expected {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(parse_server_name)?;
        let identity = Identity::derive(&(self.find)(name)?, StreamEndpoint::Acceptor).ok()?;
        // After a HelloRetryRequest the dialer names a key again: only the first name counts.
        let (first, identity) = self.named.get_or_init(|| (name, identity));
        (*first == name).then(|| Arc::clone(&identity.own))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let unknown = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        let (_, identity) = self.named.get().ok_or(unknown)?;
        is_key(presented, &identity.other).map(|()| ClientCertVerified::assertion())
    }

    signed_by_raw_keys!();
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;

    use super::*;

    #[test]
    fn aes_is_preferred_with_hardware_support() {
        let first = |has_aes| suites(has_aes)[0].suite();
        assert_eq!(first(true), CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(first(false), CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        assert_eq!(suites(true).len(), 2);
    }
}
