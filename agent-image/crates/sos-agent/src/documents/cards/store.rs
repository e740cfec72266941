//! Stored Offers, and counts of refused Offers (spec/card.md clauses 6 and 13).

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use sos_wire::{CardOffer, CardStatus, InstallationId, PairingId};

use crate::documents::config::peers::{Peer, Peers};

/// Reason why an Offer is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Magic, version, type, status or length is wrong, or the message is incomplete.
    Malformed,
    /// The document does not list the pairing, or the key folder has no key of this pairing and key id.
    UnknownKey,
    /// The tag is wrong.
    WrongTag,
    /// The sequence is not higher than the stored Offer's sequence.
    NotNewer,
    /// The Offer is from an installation that must not use the pairing.
    OtherInstallation,
    /// The maximum number of connections is open.
    TooMany,
    /// The exchange has taken longer than its time limit.
    TimedOut,
}

impl Refusal {
    /// All reasons, in the order of the page.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::UnknownKey,
        Self::WrongTag,
        Self::NotNewer,
        Self::OtherInstallation,
        Self::TooMany,
        Self::TimedOut,
    ];

    /// Name on the page.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Malformed => "Malformed",
            Self::UnknownKey => "UnknownKey",
            Self::WrongTag => "WrongTag",
            Self::NotNewer => "NotNewer",
            Self::OtherInstallation => "OtherInstallation",
            Self::TooMany => "TooMany",
            Self::TimedOut => "TimedOut",
        }
    }
}

/// The stored Offer of a pairing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOffer {
    /// Installation of the sender.
    pub installation: InstallationId,
    /// Time of the Offer at its sender, milliseconds since 1970.
    pub sequence: u64,
    /// The whole message, so that the operator can verify its tag.
    pub message: Bytes,
    /// Time of arrival.
    pub arrived: Instant,
}

/// One Offer of each pairing, and counts of refused Offers.
#[derive(Debug, Default)]
pub struct CardStore {
    offers: BTreeMap<PairingId, StoredOffer>,
    refused: BTreeMap<Refusal, u64>,
}

impl CardStore {
    /// Stores a verified Offer, or counts its refusal. `message` is the whole Offer, and `peer` the entry of its pairing in `peers`.
    pub fn offer(
        &mut self,
        offer: &CardOffer<'_>,
        message: &[u8],
        (peers, peer): (&Peers, &Peer),
        now: Instant,
    ) -> CardStatus {
        if !peers.admits(peer, offer.installation) {
            self.refuse(Refusal::OtherInstallation);
            return CardStatus::OtherInstallation;
        }
        if self.offers.get(&offer.pairing).is_some_and(|stored| stored.sequence >= offer.sequence) {
            self.refuse(Refusal::NotNewer);
            return CardStatus::NotNewer;
        }
        let (installation, sequence) = (offer.installation, offer.sequence);
        let stored =
            StoredOffer { installation, sequence, message: Bytes::copy_from_slice(message), arrived: now };
        self.offers.insert(offer.pairing, stored);
        CardStatus::Stored
    }

    /// Counts a refused Offer.
    pub fn refuse(&mut self, refusal: Refusal) {
        *self.refused.entry(refusal).or_default() += 1;
    }

    /// Number of Offers refused for a reason since the start of the agent.
    #[must_use]
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused.get(&refusal).copied().unwrap_or(0)
    }

    /// Drops Offers that a new document excludes. Offers of removed pairings are dropped to bound the store. Offers of installations that
    /// the document does not admit are dropped because their higher sequence would block Offers of the right installation.
    pub fn apply(&mut self, peers: &Peers) {
        self.offers.retain(|pairing, stored| {
            peers.peer(*pairing).is_some_and(|peer| peers.admits(peer, stored.installation))
        });
    }

    /// The stored Offers by pairing.
    pub fn offers(&self) -> impl Iterator<Item = (PairingId, &StoredOffer)> {
        self.offers.iter().map(|(pairing, stored)| (*pairing, stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::peers::tests::{EAST, PAIRING, WEST, peers};
    use sos_wire::KeyId;

    fn offer(installation: InstallationId, sequence: u64) -> CardOffer<'static> {
        let key_id = KeyId::new(1).unwrap();
        CardOffer { key_id, pairing: PAIRING, installation, nonce: [0; 16], sequence, card: b"{}" }
    }

    fn store(
        store: &mut CardStore,
        peers: &Peers,
        installation: InstallationId,
        sequence: u64,
    ) -> CardStatus {
        let parties = (peers, peers.peer(PAIRING).unwrap());
        store.offer(&offer(installation, sequence), &sequence.to_be_bytes(), parties, Instant::now())
    }

    fn sequences(store: &CardStore) -> Vec<u64> {
        store.offers().map(|(_, stored)| stored.sequence).collect()
    }

    #[test]
    fn only_a_higher_sequence_replaces_a_stored_offer() {
        let (mut cards, peers) = (CardStore::default(), peers(None));
        let expected = [
            (7, CardStatus::Stored),
            (7, CardStatus::NotNewer),
            (6, CardStatus::NotNewer),
            (8, CardStatus::Stored),
        ];
        for (sequence, status) in expected {
            assert_eq!(store(&mut cards, &peers, EAST, sequence), status);
        }
        assert_eq!((sequences(&cards), cards.refused(Refusal::NotNewer)), (vec![8], 2));
        assert_eq!(cards.offers().next().unwrap().1.message, 8_u64.to_be_bytes().as_slice());
    }

    #[test]
    fn an_offer_of_another_installation_is_not_stored() {
        let (mut cards, peers) = (CardStore::default(), peers(Some(EAST)));
        let other = InstallationId([9; 16]);
        assert_eq!(store(&mut cards, &peers, other, 7), CardStatus::OtherInstallation);
        assert_eq!((sequences(&cards), cards.refused(Refusal::OtherInstallation)), (vec![], 1));
        assert_eq!(store(&mut cards, &peers, EAST, 1), CardStatus::Stored);
    }

    #[test]
    fn a_reflected_own_offer_is_not_stored_before_the_first_exchange() {
        let (mut cards, peers) = (CardStore::default(), peers(None));
        assert_eq!(store(&mut cards, &peers, WEST, 7), CardStatus::OtherInstallation);
        assert_eq!(store(&mut cards, &peers, EAST, 1), CardStatus::Stored);
    }

    #[test]
    fn a_new_document_drops_offers_that_it_excludes() {
        let mut cards = CardStore::default();
        store(&mut cards, &peers(None), EAST, 7);
        cards.apply(&peers(None));
        cards.apply(&peers(Some(EAST)));
        assert_eq!(sequences(&cards), [7]);
        cards.apply(&peers(Some(InstallationId([9; 16]))));
        assert!(sequences(&cards).is_empty());
        store(&mut cards, &peers(None), EAST, 7);
        cards.apply(&Peers { peers: Vec::new(), ..peers(None) });
        assert!(sequences(&cards).is_empty());
    }
}
