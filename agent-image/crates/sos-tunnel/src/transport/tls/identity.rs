//! Identity of each end of an encrypted stream, and the identity expected of the other end.

use std::sync::Arc;

use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use sos_wire::{Key, StreamEndpoint};
use zeroize::Zeroizing;

/// Prefix of the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410, 7).
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// One end's key, and the only key that this end accepts from the other.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) own: Arc<CertifiedKey>,
    pub(super) other: CertificateDer<'static>,
}

impl Identity {
    /// Derives the keys of both ends from the pair key; `own` selects the key of this end.
    pub(super) fn derive(pair: &Key, own: StreamEndpoint) -> Result<Self, rustls::Error> {
        let other = match own {
            StreamEndpoint::Dialer => StreamEndpoint::Acceptor,
            StreamEndpoint::Acceptor => StreamEndpoint::Dialer,
        };
        let key = signing_key(pair, own)?;
        let certified = CertifiedKey::new(vec![public_key(&*key)?], key);
        Ok(Self { own: Arc::new(certified), other: public_key(&*signing_key(pair, other)?)? })
    }
}

fn signing_key(pair: &Key, endpoint: StreamEndpoint) -> Result<Arc<dyn SigningKey>, rustls::Error> {
    let mut der = Zeroizing::new([0; PKCS8.len() + 32]);
    der[..PKCS8.len()].copy_from_slice(&PKCS8);
    der[PKCS8.len()..].copy_from_slice(&*pair.stream_identity(endpoint));
    any_eddsa_type(&PrivatePkcs8KeyDer::from(der.as_slice()))
}

/// The key as a SubjectPublicKeyInfo, used instead of a certificate.
fn public_key(key: &dyn SigningKey) -> Result<CertificateDer<'static>, rustls::Error> {
    let spki = key.public_key().ok_or_else(|| rustls::Error::General("no public key".to_owned()))?;
    Ok(CertificateDer::from(spki.as_ref().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The private keys are in spec/vectors/keys; the public keys here belong to them (RFC 8032).
    #[test]
    fn public_keys_follow_from_the_pair_key() {
        let master = Key::new(std::array::from_fn(|i| i as u8));
        let pair = master.pair(sos_wire::SiteId(1), sos_wire::SiteId(2));
        let dialer = Identity::derive(&pair, StreamEndpoint::Dialer).unwrap();
        let acceptor = Identity::derive(&pair, StreamEndpoint::Acceptor).unwrap();
        assert_eq!(dialer.own.cert[0], acceptor.other);
        assert_eq!(acceptor.own.cert[0], dialer.other);
        let spki = "302a300506032b6570032100";
        assert_eq!(
            hex(&acceptor.other),
            format!("{spki}553b997b167a457e277adc6d7885714ec33965de7582f066fa4025fb0c283637")
        );
        assert_eq!(
            hex(&dialer.other),
            format!("{spki}b9140d7275182494b788442cc4564ce63d27e0fb039f305aaf368e42c121ed48")
        );
    }
}
