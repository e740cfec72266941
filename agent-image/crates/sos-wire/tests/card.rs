//! Properties of the codec of site cards: decoding reverses encoding; any other bytes give an error and never a panic.
#![allow(clippy::unwrap_used, missing_docs)]

use proptest::collection::vec;
use proptest::prelude::*;
use sos_wire::card::{HEADER_LEN, MAX_CARD, MAX_LEN};
use sos_wire::*;

const KEY: Key = Key::new([7; 32]);

fn offer(card: &[u8]) -> CardOffer<'_> {
    CardOffer {
        key_id: KeyId::new(1).unwrap(),
        pairing: PairingId([1; 16]),
        installation: InstallationId([2; 16]),
        nonce: [3; 16],
        sequence: 4,
        card,
    }
}

fn answer(card: &[u8]) -> CardAnswer<'_> {
    CardAnswer { installation: InstallationId([5; 16]), sequence: 6, status: CardStatus::Stored, card }
}

proptest! {
    #[test]
    fn an_offer_round_trips(
        key_id in 1..=u16::MAX, ids in any::<[[u8; 16]; 3]>(), sequence: u64, card in vec(any::<u8>(), 0..3000)
    ) {
        let [pairing, installation, nonce] = ids;
        let (pairing, installation) = (PairingId(pairing), InstallationId(installation));
        let key_id = KeyId::new(key_id).unwrap();
        let offer = CardOffer { key_id, pairing, installation, nonce, sequence, card: &card };
        let bytes = offer.encode(&KEY).unwrap();
        let unverified = UnverifiedOffer::parse(&bytes).unwrap();
        prop_assert_eq!(unverified.header.message_len(), bytes.len());
        prop_assert_eq!(unverified.verify(&KEY), Ok(offer));
    }

    #[test]
    fn an_answer_round_trips_for_its_offer_only(
        id: [u8; 16], sequence: u64, status in 0u8..3, card in vec(any::<u8>(), 0..3000)
    ) {
        let to = offer(b"one").encode(&KEY).unwrap();
        let to = UnverifiedOffer::parse(&to).unwrap();
        let status = CardStatus::from_code(status).unwrap();
        let answer = CardAnswer { installation: InstallationId(id), sequence, status, card: &card };
        let bytes = answer.encode(&KEY, &to).unwrap();
        prop_assert_eq!(CardAnswer::verify(&bytes, &KEY, &to), Ok(answer));
        let other = offer(b"two").encode(&KEY).unwrap();
        let other = UnverifiedOffer::parse(&other).unwrap();
        prop_assert_eq!(CardAnswer::verify(&bytes, &KEY, &other), Err(WireError::Tag));
    }

    #[test]
    fn a_changed_or_truncated_message_is_refused(at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = offer(b"a card").encode(&KEY).unwrap();
        let to_bytes = bytes.clone();
        let to = UnverifiedOffer::parse(&to_bytes).unwrap();
        let mut reply = answer(b"another").encode(&KEY, &to).unwrap();
        prop_assert!(UnverifiedOffer::parse(&bytes[..at.index(bytes.len())]).is_err());
        prop_assert!(CardAnswer::verify(&reply[..at.index(reply.len())], &KEY, &to).is_err());
        let (in_offer, in_reply) = (at.index(bytes.len()), at.index(reply.len()));
        bytes[in_offer] ^= 1 << bit;
        reply[in_reply] ^= 1 << bit;
        prop_assert!(UnverifiedOffer::parse(&bytes).and_then(|offer| offer.verify(&KEY)).is_err());
        prop_assert!(CardAnswer::verify(&reply, &KEY, &to).is_err());
    }

    #[test]
    fn any_bytes_give_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let read = UnverifiedOffer::parse(&bytes).and_then(|offer| offer.verify(&KEY));
        prop_assert!(read.is_err());
    }
}

#[test]
fn length_of_a_card_is_bounded_before_the_card_is_read() {
    let largest = vec![b' '; MAX_CARD];
    let bytes = offer(&largest).encode(&KEY).unwrap();
    assert_eq!(bytes.len(), MAX_LEN);
    let to = UnverifiedOffer::parse(&bytes).unwrap();
    assert_eq!(to.verify(&KEY).unwrap().card.len(), MAX_CARD);
    assert_eq!(answer(&largest).encode(&KEY, &to).unwrap().len(), MAX_LEN);
    let larger = vec![b' '; MAX_CARD + 1];
    assert_eq!(offer(&larger).encode(&KEY), Err(WireError::Length));
    assert_eq!(answer(&larger).encode(&KEY, &to), Err(WireError::Length));
    let mut header: [u8; HEADER_LEN] = *bytes.first_chunk().unwrap();
    for length in [MAX_CARD as u32 + 1, u32::MAX] {
        header[68..].copy_from_slice(&length.to_be_bytes());
        assert_eq!(OfferHeader::parse(&header), Err(WireError::Length));
    }
}

#[test]
fn an_offer_reflected_as_its_own_answer_is_refused() {
    let mut bytes = offer(b"a card").encode(&KEY).unwrap();
    let to_bytes = bytes.clone();
    let to = UnverifiedOffer::parse(&to_bytes).unwrap();
    assert_eq!(CardAnswer::verify(&bytes, &KEY, &to), Err(WireError::Type(1)));
    bytes[5] = 2;
    assert_eq!(CardAnswer::verify(&bytes, &KEY, &to), Err(WireError::Tag));
}
