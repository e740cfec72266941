//! The two decisions of an exchange: on the header, before the card is read, and on the whole Offer (spec/card.md clauses 5 to 7).

use std::time::Instant;

use sos_wire::card::HEADER_LEN;
use sos_wire::{
    CardAnswer, CardStatus, InstallationId, Key, KeyId, OfferHeader, PairingId, UnverifiedOffer, WireError,
};

use crate::documents::cards::Cards;
use crate::documents::cards::store::Refusal;
use crate::documents::config::peers::{Peer, Peers};

/// An Offer that may be read: its key is known, and its length is within the bound.
#[derive(Debug)]
pub struct Admitted<'a> {
    peers: &'a Peers,
    peer: &'a Peer,
    key: Key,
    header: OfferHeader,
}

/// Checks the header of an Offer, and finds its pairing and key. `find` is the lookup in the key folder.
///
/// # Errors
/// [`Refusal::Malformed`] or [`Refusal::UnknownKey`].
pub fn admit<'a>(
    header: &[u8; HEADER_LEN],
    peers: &'a Peers,
    find: impl FnOnce(PairingId, KeyId) -> Result<Key, WireError>,
) -> Result<Admitted<'a>, Refusal> {
    let header = OfferHeader::parse(header).map_err(refusal)?;
    let peer = peers.peer(header.pairing).ok_or(Refusal::UnknownKey)?;
    let key = find(header.pairing, header.key_id).map_err(refusal)?;
    Ok(Admitted { peers, peer, key, header })
}

impl Admitted<'_> {
    /// Bytes of the whole message.
    #[must_use]
    pub fn message_len(&self) -> usize {
        self.header.message_len()
    }

    /// Verifies the whole Offer, stores it if it is newer, and returns the Answer. If the Offer is not stored, the store counts it as refused.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] or [`Refusal::WrongTag`]: the connection is closed without an Answer.
    pub fn answer(&self, message: &[u8], cards: &Cards, now: Instant) -> Result<Vec<u8>, Refusal> {
        let unverified = UnverifiedOffer::parse(message).map_err(refusal)?;
        let offer = unverified.verify(&self.key).map_err(refusal)?;
        let parties = (self.peers, self.peer);
        let status = cards.with(|store| store.offer(&offer, message, parties, now));
        let answer = compose(self.peers.installation, self.peer, status);
        Ok(answer.encode(&self.key, &unverified).expect("the document bounds the card"))
    }
}

/// The Answer with this cluster's card, or without a card if the installation must not use the pairing.
fn compose(installation: InstallationId, peer: &Peer, status: CardStatus) -> CardAnswer<'_> {
    let card = if status == CardStatus::OtherInstallation { "" } else { &peer.card };
    let sequence = if card.is_empty() { 0 } else { peer.sequence };
    CardAnswer { installation, sequence, status, card: card.as_bytes() }
}

fn refusal(error: WireError) -> Refusal {
    match error {
        WireError::UnknownKey(_) => Refusal::UnknownKey,
        WireError::Tag => Refusal::WrongTag,
        _ => Refusal::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::peers::tests::{EAST, PAIRING, WEST, peers};
    use sos_wire::CardOffer;

    const KEY: Key = Key::new([7; 32]);

    fn find(pairing: PairingId, id: KeyId) -> Result<Key, WireError> {
        let known = pairing == PAIRING && id.as_u16() == 3;
        if known { Ok(KEY) } else { Err(WireError::UnknownKey(id.as_u16())) }
    }

    fn offer(installation: InstallationId, sequence: u64) -> CardOffer<'static> {
        let key_id = KeyId::new(3).unwrap();
        CardOffer { key_id, pairing: PAIRING, installation, nonce: [4; 16], sequence, card: b"east" }
    }

    fn exchange(cards: &Cards, peers: &Peers, message: &[u8]) -> Result<Vec<u8>, Refusal> {
        let admitted = admit(message.first_chunk().unwrap(), peers, find)?;
        assert_eq!(admitted.message_len(), message.len());
        admitted.answer(message, cards, Instant::now())
    }

    #[test]
    fn a_new_offer_is_stored_and_answered_with_this_clusters_card() {
        let (cards, peers) = (Cards::default(), peers(Some(EAST)));
        let message = offer(EAST, 7).encode(&KEY).unwrap();
        let to = UnverifiedOffer::parse(&message).unwrap();
        for status in [CardStatus::Stored, CardStatus::NotNewer] {
            let answer = exchange(&cards, &peers, &message).unwrap();
            let answer = CardAnswer::verify(&answer, &KEY, &to).unwrap();
            assert_eq!(answer, CardAnswer { installation: WEST, sequence: 11, status, card: b"west" });
        }
        cards.with(|store| assert_eq!(store.offers().next().unwrap().1.message, message));
    }

    #[test]
    fn another_installation_is_answered_without_a_card() {
        let (cards, peers) = (Cards::default(), peers(Some(EAST)));
        let message = offer(InstallationId([9; 16]), 7).encode(&KEY).unwrap();
        let answer = exchange(&cards, &peers, &message).unwrap();
        let answer = CardAnswer::verify(&answer, &KEY, &UnverifiedOffer::parse(&message).unwrap()).unwrap();
        let status = CardStatus::OtherInstallation;
        assert_eq!(answer, CardAnswer { installation: WEST, sequence: 0, status, card: b"" });
    }

    #[test]
    fn a_forged_offer_is_refused_without_an_answer() {
        let (cards, peers) = (Cards::default(), peers(None));
        let forged = offer(EAST, 7).encode(&Key::new([8; 32])).unwrap();
        assert_eq!(exchange(&cards, &peers, &forged), Err(Refusal::WrongTag));
        cards.with(|store| assert_eq!(store.offers().count(), 0));
    }

    #[test]
    fn key_and_pairing_must_be_known_before_the_card_is_read() {
        let (cards, peers) = (Cards::default(), peers(None));
        let with = |change: fn(&mut CardOffer<'_>)| {
            let mut offer = offer(EAST, 7);
            change(&mut offer);
            exchange(&cards, &peers, &offer.encode(&KEY).unwrap())
        };
        assert_eq!(with(|offer| offer.key_id = KeyId::new(4).unwrap()), Err(Refusal::UnknownKey));
        assert_eq!(with(|offer| offer.pairing = PairingId([9; 16])), Err(Refusal::UnknownKey));
        let unlisted = Peers { peers: Vec::new(), ..peers.clone() };
        let message = offer(EAST, 7).encode(&KEY).unwrap();
        assert_eq!(exchange(&cards, &unlisted, &message), Err(Refusal::UnknownKey));
        assert_eq!(admit(&[0; HEADER_LEN], &peers, find).unwrap_err(), Refusal::Malformed);
    }
}
