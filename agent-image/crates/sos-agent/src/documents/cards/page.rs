//! `/cards`: stored Offers and counts of refused Offers, for the operator (spec/card.md clause 13).

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use crate::documents::cards::base64;
use crate::documents::cards::store::{CardStore, Refusal, StoredOffer};

/// The document.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    offers: Vec<Offer>,
    /// Refused Offers by cause; every cause is listed.
    refused: BTreeMap<&'static str, u64>,
}

/// A stored Offer.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    pairing: String,
    age_milliseconds: u64,
    /// The whole message in base64.
    message: String,
}

/// Renders the store.
#[must_use]
pub fn page(store: &CardStore, now: Instant) -> Page {
    let offer = |(pairing, stored): (sos_wire::PairingId, &StoredOffer)| {
        let age = now.saturating_duration_since(stored.arrived);
        Offer {
            pairing: pairing.to_string(),
            age_milliseconds: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            message: base64::encode(&stored.message),
        }
    };
    let refused = Refusal::ALL.map(|refusal| (refusal.label(), store.refused(refusal)));
    Page { offers: store.offers().map(offer).collect(), refused: refused.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::peers::tests::{EAST, PAIRING, peers};
    use serde_json::json;
    use sos_wire::{CardOffer, KeyId};
    use std::time::Duration;

    #[test]
    fn shows_each_offer_with_its_age_and_every_cause_of_refusal() {
        let (mut store, peers, now) = (CardStore::default(), peers(None), Instant::now());
        let key_id = KeyId::new(1).unwrap();
        let offer = CardOffer {
            key_id,
            pairing: PAIRING,
            installation: EAST,
            nonce: [0; 16],
            sequence: 1,
            card: b"",
        };
        store.offer(&offer, b"foob", (&peers, peers.peer(PAIRING).unwrap()), now);
        store.refuse(Refusal::TooMany);
        let page = serde_json::to_value(page(&store, now + Duration::from_millis(1500))).unwrap();
        let expected = json!({
            "offers": [{"pairing": PAIRING.to_string(), "ageMilliseconds": 1500, "message": "Zm9vYg=="}],
            "refused": {"Malformed": 0, "UnknownKey": 0, "WrongTag": 0, "NotNewer": 0, "OtherInstallation": 0,
                        "TooMany": 1, "TimedOut": 0},
        });
        assert_eq!(page, expected);
    }
}
