//! Wire formats of SOS: bytes and types of every message (the pages of `spec/`).
//!
//! The crate only converts between bytes and types: no I/O, no clock, no randomness. Input is untrusted. Decoding never panics, never
//! allocates more than a stated bound, and yields a message only after its tag has been checked: [`beacon::UnverifiedBeacon`],
//! [`order::UnverifiedOrder`] and [`card::UnverifiedOffer`] expose the fields needed to find the key, and few more.
//!
//! Order of calls:
//!
//! 1. Received datagrams: [`UnverifiedBeacon::parse`] or [`UnverifiedOrder::parse`] checks the header, the receiver finds the key in its
//!    [`Keyring`], `verify` checks the tag and decodes the body, and [`ReplayGuard::admit`] drops repeated datagrams. Sent datagrams:
//!    [`Beacon::encode`] and [`Order::encode`] sign with the key of [`Keyring::sending`].
//! 2. Streams: both ends exchange [`Hello`], [`Welcome`] and Confirm ([`stream::handshake`]). Then [`Frame::encode_head`] writes each [`Frame`],
//!    and the caller its [`Payload`]. The receiver fills a buffer, from which [`Decoder::decode`] takes frames.
//! 3. Site cards: [`OfferHeader::parse`] bounds an Offer before its card is read, [`UnverifiedOffer::verify`] checks its tag, and
//!    [`CardAnswer::encode`] signs the answer.
//!
//! | module | page | contains |
//! |---|---|---|
//! | [`id`] | README.md, card.md | ids of agents, sites, installations, pairings, keys, boots and sessions |
//! | [`keys`] | README.md | key derivation, key folders, tags |
//! | [`replay`] | README.md | replay protection for datagrams |
//! | [`error`] | README.md | errors of decoding and replay |
//! | [`cursor`] | README.md | reader of fields in network byte order |
//! | [`beacon`] | beacon.md | announcements of agents |
//! | [`order`] (`body`, `path_report`, `plain_report`) | order.md | orders between controllers and agents, and their bodies |
//! | [`stream`] (`handshake`, `frame`, `payload`, `decoder`) | frame.md | the handshake of a stream, and its frames |
//! | [`marks`] | frame.md | DSCP and TTL of a host's packets |
//! | [`card`] | card.md | Offer and Answer of the exchange of site cards between clusters |
#![forbid(unsafe_code)]

pub mod beacon;
pub mod card;
mod cursor;
mod error;
pub mod id;
pub mod keys;
mod marks;
pub mod order;
pub mod replay;
pub mod stream;

pub use beacon::{Beacon, UnverifiedBeacon};
pub use card::{CardAnswer, CardOffer, CardStatus, OfferHeader, UnverifiedOffer};
pub use error::{Replay, WireError};
pub use id::{
    AgentId, BootId, ControllerId, InstallationId, KeyId, MacAddress, PairingId, SessionNumber, SessionUuid,
    SiteId,
};
pub use keys::{Key, KeyFile, Keyring, SENDING_FILE, StreamEndpoint, sending_to};
pub use marks::Marks;
pub use order::{
    Accept, Congestion, EndReason, Ended, FlowReport, Order, OrderBody, OrderHeader, PathReport, PathRow,
    PlainReason, PlainReport, PlainRow, PlainSample, Prepare, RefuseReason, ReportedFlow, Role, ServiceMark,
    ServiceRow, SessionReport, UnverifiedOrder,
};
pub use replay::ReplayGuard;
pub use stream::decoder::Decoder;
pub use stream::frame::{Backlog, Body, Frame, Open, Willingness};
pub use stream::handshake::{Capabilities, Hello, Welcome, WelcomeStatus};
pub use stream::payload::{Keeper, Kept, Payload};
