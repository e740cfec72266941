//! Bytes and types of every message of SOS (the pages of `spec/`).
//!
//! This crate turns bytes into types and types into bytes and does nothing else: no I/O, no clock, no randomness. What comes in is
//! untrusted. Decoding never panics, never allocates more than a stated bound, and yields a message only after its tag has been
//! checked: [`beacon::UnverifiedBeacon`] and [`order::UnverifiedOrder`] show what is needed to find the key, and nothing more.
//!
//! | module | page | carries |
//! |---|---|---|
//! | [`keys`], [`id`], [`replay`] | README.md | names, keys, derivation, key folders, replay |
//! | [`beacon`] | beacon.md | an agent making itself known |
//! | [`order`] | order.md | what a controller and an agent tell each other |
//! | [`handshake`], [`frame`], [`payload`], [`decoder`] | frame.md | streams between agents |
#![forbid(unsafe_code)]

pub mod beacon;
mod cursor;
pub mod decoder;
mod error;
pub mod frame;
pub mod handshake;
pub mod id;
pub mod keys;
mod marks;
pub mod order;
mod order_body;
mod path_report;
pub mod payload;
mod plain_report;
pub mod replay;

pub use beacon::{Beacon, UnverifiedBeacon};
pub use decoder::Decoder;
pub use error::WireError;
pub use frame::{Backlog, Body, Frame, Open, Willingness};
pub use handshake::{Capabilities, Hello, Welcome, WelcomeStatus};
pub use id::{AgentId, BootId, ControllerId, KeyId, MacAddress, SessionNumber, SessionUuid, SiteId};
pub use keys::{Key, KeyFile, Keyring, SENDING_FILE, StreamEndpoint};
pub use marks::Marks;
pub use order::{Order, OrderBody, OrderHeader, UnverifiedOrder};
pub use order_body::{
    Accept, Congestion, EndReason, Ended, FlowReport, Prepare, RefuseReason, ReportedFlow, Role,
    SessionReport,
};
pub use path_report::{PathReport, PathRow, ServiceMark, ServiceRow};
pub use payload::{Keeper, Kept, Payload};
pub use plain_report::{PlainReason, PlainReport, PlainRow, PlainSample};
pub use replay::{Replay, ReplayGuard};
