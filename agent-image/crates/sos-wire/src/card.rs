//! The exchange of site cards between two clusters: Offer and Answer (card.md section 2).
//!
//! An acceptor reads [`HEADER_LEN`] bytes and calls [`OfferHeader::parse`], which bounds the rest of the message and names its key. Then it
//! reads [`OfferHeader::message_len`] bytes in all, and verifies them with [`UnverifiedOffer`]. Cards are opaque bytes here.

use crate::cursor::Cursor;
use crate::error::WireError;
use crate::id::{InstallationId, KeyId, PairingId, VERSION};
use crate::keys::{Key, TAG_LEN};

/// Bytes before the card.
pub const HEADER_LEN: usize = 72;
/// Maximum length of a card in bytes.
pub const MAX_CARD: usize = 262_144;
/// Maximum length of a message in bytes.
pub const MAX_LEN: usize = HEADER_LEN + MAX_CARD + TAG_LEN;

const MAGIC: [u8; 4] = *b"SOSC";
const OFFER: u8 = 1;
const ANSWER: u8 = 2;
const OFFER_TAG: &[u8] = b"sos/card/offer";
const ANSWER_TAG: &[u8] = b"sos/card/answer";

/// The acceptor's decision about an Offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardStatus {
    /// The offered card is stored.
    Stored,
    /// The sequence is not higher than the stored card's sequence.
    NotNewer,
    /// Another installation has this pairing.
    OtherInstallation,
}

impl CardStatus {
    const ALL: [Self; 3] = [Self::Stored, Self::NotNewer, Self::OtherInstallation];

    /// The number on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Stored => 0,
            Self::NotNewer => 1,
            Self::OtherInstallation => 2,
        }
    }

    /// Decode the number on the wire.
    ///
    /// # Errors
    /// [`WireError::Field`] for any other number.
    pub fn from_code(code: u8) -> Result<Self, WireError> {
        Self::ALL.into_iter().find(|status| status.code() == code).ok_or(WireError::Field("status"))
    }
}

/// Fields of an Offer before its card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferHeader {
    /// Id of the card key that signs both messages.
    pub key_id: KeyId,
    /// The pairing.
    pub pairing: PairingId,
    /// Installation of the sender.
    pub installation: InstallationId,
    /// Random.
    pub nonce: [u8; 16],
    /// Time of the Offer, milliseconds since 1970.
    pub sequence: u64,
    /// Length of the card in bytes, at most [`MAX_CARD`].
    pub card_len: usize,
}

impl OfferHeader {
    /// Decode the first bytes of an Offer. Their content is not authenticated yet.
    ///
    /// # Errors
    /// The first field that is wrong (card.md clause 5).
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let Head { key_id, pairing, installation, nonce, sequence, status, card_len, .. } =
            Head::decode(bytes, OFFER)?;
        if status != 0 {
            return Err(WireError::Field("status"));
        }
        Ok(Self { key_id, pairing, installation, nonce, sequence, card_len })
    }

    /// Bytes of the whole message, at most [`MAX_LEN`].
    pub const fn message_len(&self) -> usize {
        HEADER_LEN + self.card_len + TAG_LEN
    }
}

/// An Offer whose tag is correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardOffer<'a> {
    /// Id of the card key that signs the Offer.
    pub key_id: KeyId,
    /// The pairing.
    pub pairing: PairingId,
    /// Installation of the sender.
    pub installation: InstallationId,
    /// Random.
    pub nonce: [u8; 16],
    /// Time of the Offer, milliseconds since 1970.
    pub sequence: u64,
    /// The sender's card.
    pub card: &'a [u8],
}

impl CardOffer<'_> {
    /// Encode the Offer and sign it with the pairing's card key.
    ///
    /// # Errors
    /// [`WireError::Length`] if the card is longer than [`MAX_CARD`].
    pub fn encode(&self, key: &Key) -> Result<Vec<u8>, WireError> {
        let Self { key_id, pairing, installation, nonce, sequence, card } = *self;
        let card_len = card.len();
        let head = Head { kind: OFFER, key_id, pairing, installation, nonce, sequence, status: 0, card_len };
        head.seal(card, key, &[OFFER_TAG])
    }
}

/// The bytes of an Offer before verification.
#[derive(Debug, Clone, Copy)]
pub struct UnverifiedOffer<'a> {
    bytes: &'a [u8],
    /// The fields before the card.
    pub header: OfferHeader,
}

impl<'a> UnverifiedOffer<'a> {
    /// Check the header and the length of a whole message.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = OfferHeader::parse(bytes.first_chunk().ok_or(WireError::Truncated)?)?;
        check_len(bytes, header.message_len())?;
        Ok(Self { bytes, header })
    }

    /// Check the tag with the pairing's card key.
    ///
    /// # Errors
    /// [`WireError::Tag`].
    pub fn verify(self, key: &Key) -> Result<CardOffer<'a>, WireError> {
        let (message, tag) = self.bytes.split_at(self.bytes.len() - TAG_LEN);
        key.check(&[OFFER_TAG, message], tag)?;
        let OfferHeader { key_id, pairing, installation, nonce, sequence, .. } = self.header;
        Ok(CardOffer { key_id, pairing, installation, nonce, sequence, card: &message[HEADER_LEN..] })
    }

    fn tag(&self) -> &'a [u8] {
        &self.bytes[self.bytes.len() - TAG_LEN..]
    }
}

/// The acceptor's answer: the fields that the Offer does not determine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardAnswer<'a> {
    /// Installation of the acceptor.
    pub installation: InstallationId,
    /// Time at which the card was issued, milliseconds since 1970; 0 without a card.
    pub sequence: u64,
    /// The decision about the offered card.
    pub status: CardStatus,
    /// The acceptor's card; empty if there is none.
    pub card: &'a [u8],
}

impl<'a> CardAnswer<'a> {
    /// Encode the Answer to an Offer and sign it with the key of the Offer.
    ///
    /// # Errors
    /// [`WireError::Length`] if the card is longer than [`MAX_CARD`].
    pub fn encode(&self, key: &Key, offer: &UnverifiedOffer<'_>) -> Result<Vec<u8>, WireError> {
        let OfferHeader { key_id, pairing, nonce, .. } = offer.header;
        let Self { installation, sequence, status, card } = *self;
        let (status, card_len) = (status.code(), card.len());
        let head = Head { kind: ANSWER, key_id, pairing, installation, nonce, sequence, status, card_len };
        head.seal(card, key, &[ANSWER_TAG, offer.tag()])
    }

    /// Bytes of the whole message, at most [`MAX_LEN`], from its first bytes, which are not authenticated yet.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn message_len(header: &[u8; HEADER_LEN]) -> Result<usize, WireError> {
        Head::decode(header, ANSWER).map(|head| HEADER_LEN + head.card_len + TAG_LEN)
    }

    /// Decode the Answer to an Offer and check its tag with the key of the Offer.
    ///
    /// # Errors
    /// The first check that fails, or the field that contradicts the Offer.
    pub fn verify(bytes: &'a [u8], key: &Key, offer: &UnverifiedOffer<'_>) -> Result<Self, WireError> {
        let head = Head::decode(bytes, ANSWER)?;
        check_len(bytes, HEADER_LEN + head.card_len + TAG_LEN)?;
        let (message, tag) = bytes.split_at(bytes.len() - TAG_LEN);
        key.check(&[ANSWER_TAG, offer.tag(), message], tag)?;
        head.check_answers(&offer.header)?;
        let (installation, sequence, status) =
            (head.installation, head.sequence, CardStatus::from_code(head.status)?);
        Ok(Self { installation, sequence, status, card: &message[HEADER_LEN..] })
    }
}

fn check_len(bytes: &[u8], expected: usize) -> Result<(), WireError> {
    match bytes.len() {
        len if len < expected => Err(WireError::Truncated),
        len if len > expected => Err(WireError::Length),
        _ => Ok(()),
    }
}

/// The fields that both messages have before the card (card.md clause 4).
struct Head {
    kind: u8,
    key_id: KeyId,
    pairing: PairingId,
    installation: InstallationId,
    nonce: [u8; 16],
    sequence: u64,
    status: u8,
    card_len: usize,
}

impl Head {
    fn seal(&self, card: &[u8], key: &Key, context: &[&[u8]]) -> Result<Vec<u8>, WireError> {
        if card.len() > MAX_CARD {
            return Err(WireError::Length);
        }
        let mut out = Vec::with_capacity(HEADER_LEN + card.len() + TAG_LEN);
        self.put(&mut out);
        out.extend_from_slice(card);
        let tag = key.tag(&[context, &[&out]].concat());
        out.extend_from_slice(&tag);
        Ok(out)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.kind]);
        out.extend_from_slice(&self.key_id.as_u16().to_be_bytes());
        for field in [self.pairing.0, self.installation.0, self.nonce] {
            out.extend_from_slice(&field);
        }
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&[self.status, 0, 0, 0]);
        out.extend_from_slice(&u32::try_from(self.card_len).expect("at most MAX_CARD").to_be_bytes());
    }

    fn decode(bytes: &[u8], expected: u8) -> Result<Self, WireError> {
        let mut c = Cursor::new(bytes);
        c.magic(MAGIC)?;
        c.version()?;
        let kind = c.u8()?;
        if kind != expected {
            return Err(WireError::Type(kind));
        }
        let key_id = c.u16()?;
        let (pairing, installation, nonce) = (PairingId(c.array()?), InstallationId(c.array()?), c.array()?);
        let (sequence, status) = (c.u64()?, c.u8()?);
        c.skip(3)?;
        let card_len = usize::try_from(c.u32()?).ok().filter(|len| *len <= MAX_CARD);
        let card_len = card_len.ok_or(WireError::Length)?;
        let key_id = KeyId::decode(key_id)?;
        Ok(Self { kind, key_id, pairing, installation, nonce, sequence, status, card_len })
    }

    fn check_answers(&self, offer: &OfferHeader) -> Result<(), WireError> {
        let fields = [
            (self.key_id == offer.key_id, "key id"),
            (self.pairing == offer.pairing, "pairing"),
            (self.nonce == offer.nonce, "nonce"),
        ];
        let wrong = fields.into_iter().find(|(equal, _)| !equal);
        wrong.map_or(Ok(()), |(_, field)| Err(WireError::Field(field)))
    }
}
