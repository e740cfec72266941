//! The exchange of site cards with a running agent: file of peers, key folder, port and page (spec/card.md).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use sos_wire::{CardAnswer, CardOffer, CardStatus, InstallationId, Key, KeyId, PairingId, UnverifiedOffer};

use crate::lab::{Lab, NEAR, Network, PATIENCE, WAN, eventually};

const SECRET: [u8; 32] = [5; 32];
const PAIRING: PairingId = PairingId([0x11; 16]);
const PORT: u16 = 14_790;

/// Sends an Offer over the WAN, and returns the bytes until the agent closes the connection; `None` if there is no connection. The agent
/// closes by RST if it has not read the whole Offer.
fn exchange(lab: &Lab, message: Vec<u8>) -> Option<Vec<u8>> {
    lab.at("far", move || {
        let mut stream = TcpStream::connect((WAN[0][0], PORT)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let _ = stream.write_all(&message).and_then(|()| stream.read_to_end(&mut answer));
        Some(answer)
    })
}

#[test]
fn a_running_agent_takes_peers_and_card_keys_without_a_restart() {
    let lab = Lab::on(Network::Routes);
    let near = lab.agent_until_ready(NEAR);
    let key_id = KeyId::new(3).unwrap();
    let offer = CardOffer {
        key_id,
        pairing: PAIRING,
        installation: InstallationId([2; 16]),
        nonce: [4; 16],
        sequence: 7,
        card: b"east",
    };
    let message = offer.encode(&Key::new(SECRET)).unwrap();
    assert_eq!(exchange(&lab, message.clone()), None, "port closed while there is no peers file");

    let folder = lab.dir.path().join(NEAR.host);
    let peer = json!({"pairing": PAIRING.to_string(), "installation": null, "sequence": 11, "card": "west"});
    let document = json!({"version": "v1alpha1", "port": PORT, "installation": InstallationId([1; 16]).to_string(),
                          "peers": [peer]});
    std::fs::write(folder.join("peers.json"), document.to_string()).unwrap();
    eventually("the agent listens and does not know the key", || {
        exchange(&lab, message.clone()).is_some_and(|answer| answer.is_empty())
    });
    crate::lab::write_key(&folder.join("keys").join(format!("card-{PAIRING}-3")), SECRET);
    let mut answer = Vec::new();
    eventually("the agent answers", || {
        answer = exchange(&lab, message.clone()).unwrap_or_default();
        !answer.is_empty()
    });
    let answer = CardAnswer::verify(&answer, &Key::new(SECRET), &UnverifiedOffer::parse(&message).unwrap());
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.card), (CardStatus::Stored, b"west".as_slice()));
    let page: Value = serde_json::from_str(&near.get("/cards").unwrap()).unwrap();
    assert_eq!(page["offers"][0]["pairing"], PAIRING.to_string());
}
