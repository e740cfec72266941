//! The document of peer clusters: this cluster's cards, and the installation that may use each pairing (spec/card.md clause 12).

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::str::FromStr as _;

use serde::{Deserialize, Deserializer};
use sos_daemon::document::{self, ConfigError};
use sos_wire::card::MAX_CARD;
use sos_wire::{InstallationId, PairingId};

use super::from_text;

/// Maximum number of pairings (card.md clause 8).
pub const MAX_PAIRINGS: usize = 64;
const VERSION: &str = "v1alpha1";

/// The whole document. Unknown fields are ignored, so that an operator may be newer than its agents.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Peers {
    /// Always `v1alpha1`.
    pub version: String,
    /// TCP port of exchanges.
    pub port: NonZeroU16,
    /// Id of the agent's own installation.
    #[serde(deserialize_with = "from_text")]
    pub installation: InstallationId,
    /// The peers, one pairing each.
    pub peers: Vec<Peer>,
}

/// A peer cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Peer {
    /// The pairing.
    #[serde(deserialize_with = "from_text")]
    pub pairing: PairingId,
    /// The only installation that may use the pairing; `None` until the first exchange.
    #[serde(default, deserialize_with = "installation")]
    pub installation: Option<InstallationId>,
    /// Time at which the card was issued, milliseconds since 1970.
    pub sequence: u64,
    /// Text of this cluster's card for the peer.
    pub card: String,
}

fn installation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<InstallationId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| InstallationId::from_str(&text)).transpose().map_err(serde::de::Error::custom)
}

impl Peers {
    /// Parses and checks a document.
    ///
    /// # Errors
    /// The first error, with its JSON path.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let peers: Self = document::parse(text)?;
        peers.check()?;
        Ok(peers)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.version != VERSION {
            return Err(ConfigError::new("version", format!("must be {VERSION}")));
        }
        if self.peers.len() > MAX_PAIRINGS {
            return Err(ConfigError::new("peers", format!("holds more than {MAX_PAIRINGS} pairings")));
        }
        let mut pairings = BTreeSet::new();
        for (at, peer) in self.peers.iter().enumerate() {
            if peer.card.len() > MAX_CARD {
                return Err(ConfigError::new(
                    format!("peers[{at}].card"),
                    format!("longer than {MAX_CARD} bytes"),
                ));
            }
            if !pairings.insert(peer.pairing) {
                return Err(ConfigError::new(format!("peers[{at}].pairing"), "is listed twice"));
            }
        }
        Ok(())
    }

    /// The entry of a pairing.
    #[must_use]
    pub fn peer(&self, pairing: PairingId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.pairing == pairing)
    }

    /// True if an installation may offer cards under the pairing of `peer`. This cluster's own installation is never admitted: both
    /// clusters sign with the same key, so an attacker could record an Offer of this cluster and replay the Offer to this cluster's agents.
    #[must_use]
    pub fn admits(&self, peer: &Peer, installation: InstallationId) -> bool {
        installation != self.installation && peer.installation.is_none_or(|only| only == installation)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};
    use sos_daemon::document::MAX_DOCUMENT_BYTES;

    pub(crate) const PAIRING: PairingId = PairingId([0x11; 16]);
    pub(crate) const WEST: InstallationId = InstallationId([0xaa; 16]);
    pub(crate) const EAST: InstallationId = InstallationId([0xbb; 16]);

    fn document(installation: Option<InstallationId>) -> Value {
        json!({
            "version": "v1alpha1", "port": 14790, "installation": WEST.to_string(),
            "peers": [{"pairing": PAIRING.to_string(), "installation": installation.map(|id| id.to_string()),
                       "sequence": 11, "card": "west"}],
        })
    }

    /// The document of installation [`WEST`] with one peer.
    pub(crate) fn peers(installation: Option<InstallationId>) -> Peers {
        Peers::parse(document(installation).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn reads_a_document_and_ignores_unknown_fields() {
        let mut value = document(Some(EAST));
        value["later"] = json!(1);
        value["peers"][0]["later"] = json!([]);
        let read = Peers::parse(value.to_string().as_bytes()).unwrap();
        assert_eq!(read, peers(Some(EAST)));
        assert_eq!((read.port.get(), read.installation), (14790, WEST));
        let peer = read.peer(PAIRING).unwrap();
        assert_eq!((peer.installation, peer.sequence, peer.card.as_str()), (Some(EAST), 11, "west"));
        assert_eq!(peers(None).peers[0].installation, None);
    }

    #[test]
    fn errors_name_the_field() {
        let peer = document(None)["peers"][0].clone();
        let changes = [
            ("/version", json!("v2"), "version: must be v1alpha1"),
            ("/port", json!(0), "port: "),
            ("/port", json!(65_536), "port: "),
            ("/installation", json!("aa"), "installation: "),
            ("/installation", json!(null), "installation: "),
            ("/peers/0/pairing", json!("zz"), "peers[0].pairing: "),
            ("/peers/0/installation", json!("zz"), "peers[0].installation: "),
            ("/peers/0/sequence", json!(-1), "peers[0].sequence: "),
            ("/peers/0/card", json!({}), "peers[0].card: "),
            ("/peers/0/card", json!("x".repeat(MAX_CARD + 1)), "peers[0].card: longer than 262144 bytes"),
            ("/peers/0", json!({"pairing": PAIRING.to_string()}), "peers[0].sequence: is missing"),
            ("/peers", json!([peer, peer]), "peers[1].pairing: is listed twice"),
            ("/peers", json!(vec![peer; 65]), "peers: holds more than 64 pairings"),
        ];
        for (at, value, expected) in changes {
            let mut changed = document(None);
            *changed.pointer_mut(at).unwrap() = value;
            let error = Peers::parse(changed.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        for text in ["", "{", "[]", "{} {}"] {
            assert!(Peers::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(
            Peers::parse(&vec![b' '; MAX_DOCUMENT_BYTES + 1]).unwrap_err().to_string().contains("larger")
        );
    }
}
