//! Site cards of peer clusters: the decisions of an acceptor (spec/card.md sections 2 and 4). No I/O; [`crate::tasks::cards`] is the edge.
//!
//! 1. [`offer::admit`] finds the pairing and the key of an Offer by its header.
//! 2. [`offer::answer`] verifies the whole Offer, stores it in the [`store::CardStore`], and composes the Answer.
//! 3. [`page::page`] renders the stored Offers for the operator, in `base64`.
//!
//! The agent never reads a card: it stores and delivers the bytes.

mod base64;
pub mod offer;
pub mod page;
pub mod store;

use std::sync::{Mutex, PoisonError};

use store::CardStore;

/// The store that all exchanges and the page share.
#[derive(Debug, Default)]
pub struct Cards(Mutex<CardStore>);

impl Cards {
    /// Calls `act` with the store. A panic of `act` leaves the store usable, since every step of the store's methods leaves it valid.
    pub fn with<T>(&self, act: impl FnOnce(&mut CardStore) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
