//! Site cards: messages of peer clusters, the document of peers, and Answers to machines outside Kubernetes.

use std::sync::LazyLock;
use std::time::Instant;

use sos_agent::documents::cards::Cards;
use sos_agent::documents::cards::offer::admit;
use sos_agent::documents::config::AgentConfig;
use sos_agent::documents::config::peers::{Peer, Peers};
use sos_agent::documents::enrollment::Enrollment;
use sos_agent::documents::enrollment::offer::{Answered, Dialogue, MachineReport};
use sos_wire::card::MAX_LEN;
use sos_wire::{CardAnswer, CardOffer, CardStatus, InstallationId, Key, KeyId, PairingId, UnverifiedOffer};

use crate::KEY;

/// The Offer to which the Answers of the corpus belong.
static OFFER: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let offer = CardOffer {
        key_id: KeyId::new(3).expect("not 0"),
        pairing: PairingId([0x11; 16]),
        installation: InstallationId([0xa1; 16]),
        nonce: [0x33; 16],
        sequence: 1,
        card: b"{}",
    };
    offer.encode(&Key::new(KEY)).expect("the card is short")
});

/// The enrollment of a machine that is the node of the corpus's agent-config.
static ENROLLMENT: LazyLock<Enrollment> = LazyLock::new(|| {
    let key: String = KEY.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        r#"{{"version": "v1alpha1", "machine": "edge1", "siteID": 9, "pairing": "{}", "keys": {{"1": "{key}"}}, "agents": ["192.0.2.1:1"]}}"#,
        "11".repeat(16)
    );
    Enrollment::parse(text.as_bytes()).expect("it is an enrollment")
});

/// A verified Offer or Answer round-trips through its encoding, and an acceptor answers each Offer that it verifies. A document of peers is
/// parsed or rejected with a path. A machine takes only a valid agent-config of its own.
pub fn card(data: &[u8]) {
    offer(data);
    answer(data);
    machine(data);
    if let Err(error) = Peers::parse(data) {
        assert!(!error.path.is_empty() && !error.message.is_empty());
    }
}

fn offer(data: &[u8]) {
    let Ok(unverified) = UnverifiedOffer::parse(data) else { return };
    assert!(unverified.header.message_len() == data.len() && data.len() <= MAX_LEN);
    let Ok(offer) = unverified.verify(&Key::new(KEY)) else { return };
    let encoded = offer.encode(&Key::new(KEY)).expect("what was read can be written");
    let again = UnverifiedOffer::parse(&encoded).and_then(|o| o.verify(&Key::new(KEY)));
    assert_eq!(again.as_ref(), Ok(&offer));
    accept(data, &unverified);
}

/// An acceptor whose document lists the pairing answers the Offer, and the Answer is valid.
fn accept(message: &[u8], offer: &UnverifiedOffer<'_>) {
    let pairing = offer.header.pairing;
    let peer = Peer { pairing, installation: None, sequence: 9, card: "{}".to_owned() };
    let peers = Peers {
        version: "v1alpha1".to_owned(),
        port: std::num::NonZeroU16::MAX,
        installation: InstallationId([0xb2; 16]),
        peers: vec![peer],
    };
    let header = message.first_chunk().expect("the message has a header");
    let admitted = admit(header, &peers, |_, _| Ok(Key::new(KEY))).expect("pairing and key are known");
    let answer = admitted.answer(message, &Cards::default(), Instant::now()).expect("the tag is correct");
    assert!(CardAnswer::verify(&answer, &Key::new(KEY), offer).is_ok());
}

fn answer(data: &[u8]) {
    if let Some(answer) = answered(data) {
        let offer = UnverifiedOffer::parse(&OFFER).expect("it is an Offer");
        let encoded = answer.encode(&Key::new(KEY), &offer).expect("what was read can be written");
        assert_eq!(answered(&encoded), Some(answer));
    }
}

/// Parses and verifies an Answer to [`OFFER`].
pub fn answered(data: &[u8]) -> Option<CardAnswer<'_>> {
    let offer = UnverifiedOffer::parse(&OFFER).expect("it is an Offer");
    CardAnswer::verify(data, &Key::new(KEY), &offer).ok()
}

/// A machine refuses the bytes as an Answer, because they are not signed with its key, and judges an Answer whose card they are.
fn machine(data: &[u8]) {
    let mut dialogue = Dialogue::new(InstallationId([0xcc; 16]));
    let sent = dialogue.offer(&ENROLLMENT, &MachineReport::new(None, ""), 1, [0; 16]);
    assert!(dialogue.judge(&sent, data, &ENROLLMENT.machine, 0).is_err());
    let status = [CardStatus::Stored, CardStatus::NotNewer, CardStatus::OtherInstallation][data.len() % 3];
    let answer = CardAnswer { installation: InstallationId([0xaa; 16]), sequence: 1, status, card: data };
    let offer = UnverifiedOffer::parse(&sent.message).expect("it is an Offer");
    let Ok(answer) = answer.encode(&Key::new(KEY).card(), &offer) else { return };
    match dialogue.judge(&sent, &answer, &ENROLLMENT.machine, 0) {
        Ok(Answered { document: Some(document), .. }) => {
            let config = AgentConfig::parse(&document).expect("the machine has checked it");
            assert!(config.node == ENROLLMENT.machine && config.generation > 0);
        }
        Ok(Answered { document: None, .. }) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
