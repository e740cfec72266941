//! Offers of a machine and Answers with its agent-config: decisions without I/O (spec/card.md clauses 15 and 16).

use std::collections::BTreeSet;
use std::net::SocketAddrV4;

use serde::Serialize;
use sos_wire::{CardAnswer, CardOffer, CardStatus, InstallationId, Key, KeyId, UnverifiedOffer, WireError};

use crate::documents::config::AgentConfig;
use crate::documents::enrollment::Enrollment;

/// TCP port of exchanges at the cluster's agents (card.md clause 4).
const CARD_PORT: u16 = 14_790;
/// Maximum number of agents that the machine connects to in turn.
pub const MAX_ENDPOINTS: usize = 1_024;
/// Maximum length of a reported problem in bytes.
const MAX_PROBLEM: usize = 300;

/// The machine's state, as it reports it in place of a site card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineReport {
    version: &'static str,
    software: &'static str,
    generation: u64,
    hash: String,
    problem: String,
}

impl MachineReport {
    /// A report of the configuration in force, if there is one, and of the reason why a newer one is not in force ("": there is none).
    #[must_use]
    pub fn new(in_force: Option<&AgentConfig>, problem: &str) -> Self {
        let end = (0..=MAX_PROBLEM.min(problem.len())).rev().find(|at| problem.is_char_boundary(*at));
        let problem = problem[..end.unwrap_or(0)].to_owned();
        let (generation, hash) =
            in_force.map_or((0, String::new()), |config| (config.generation, config.hash.clone()));
        Self { version: "v1alpha1", software: env!("CARGO_PKG_VERSION"), generation, hash, problem }
    }
}

/// Reason why an exchange has brought nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The bytes are not an Answer of the cluster to this Offer.
    #[error("invalid answer: {0}")]
    Wire(#[from] WireError),
    /// The pairing belongs to another machine.
    #[error(
        "another machine uses this enrollment, or this machine has lost its state folder: enroll the machine again"
    )]
    OtherInstallation,
    /// The answer is from this machine.
    #[error("the answer is from this machine itself")]
    OwnAnswer,
    /// The agent-config in the Answer is unusable.
    #[error("the received agent-config cannot be used: {0}")]
    Config(String),
}

/// A usable Answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The agent-config, if the Answer carries one that is newer than the one in hand.
    pub document: Option<Vec<u8>>,
    /// True if the cluster's agent holds a later Offer of this machine: the machine's clock has been set back.
    pub not_newer: bool,
}

/// One signed Offer, and the key by which its Answer must be signed.
#[derive(Debug)]
pub struct Sent {
    /// The message.
    pub message: Vec<u8>,
    /// Id of the key.
    pub key_id: KeyId,
    key: Key,
}

/// State of the exchange with the cluster.
#[derive(Debug)]
pub struct Dialogue {
    installation: InstallationId,
    sequence: u64,
    refusals: usize,
}

impl Dialogue {
    /// State of a machine with this installation id.
    #[must_use]
    pub const fn new(installation: InstallationId) -> Self {
        Self { installation, sequence: 0, refusals: 0 }
    }

    /// Composes the next Offer. `now_ms`: milliseconds since 1970. `nonce`: random.
    ///
    /// # Panics
    /// Never: a report is shorter than a card, and an enrollment holds a key.
    pub fn offer(
        &mut self,
        enrollment: &Enrollment,
        report: &MachineReport,
        now_ms: u64,
        nonce: [u8; 16],
    ) -> Sent {
        self.sequence = now_ms.max(self.sequence + 1);
        let (key_id, secret) = self.chosen(enrollment);
        let (card, key) = (serde_json::to_vec(report).expect("a report is plain data"), secret.card());
        let offer = CardOffer {
            key_id,
            pairing: enrollment.pairing,
            installation: self.installation,
            nonce,
            sequence: self.sequence,
            card: &card,
        };
        Sent { message: offer.encode(&key).expect("a report is shorter than a card"), key_id, key }
    }

    /// The newest key, and after each refusal the next older key: an agent may not have the newest key yet.
    fn chosen<'a>(&self, enrollment: &'a Enrollment) -> (KeyId, &'a Key) {
        let newest_first = enrollment.keys.iter().rev();
        let (id, key) = newest_first
            .cycle()
            .nth(self.refusals % enrollment.keys.len())
            .expect("an enrollment holds a key");
        (*id, key)
    }

    /// Notes that an agent closed a connection without an Answer.
    pub const fn refused(&mut self) {
        self.refusals = self.refusals.wrapping_add(1);
    }

    /// Notes an Answer: the next Offer is signed with the newest key again.
    pub const fn answered(&mut self) {
        self.refusals = 0;
    }

    /// Judges an Answer. `generation`: of the newest agent-config in hand; 0 without one.
    ///
    /// # Errors
    /// The reason why the Answer is not used.
    pub fn judge(
        &self,
        sent: &Sent,
        answer: &[u8],
        machine: &str,
        generation: u64,
    ) -> Result<Answered, ExchangeError> {
        let offer = UnverifiedOffer::parse(&sent.message)?;
        let answer = CardAnswer::verify(answer, &sent.key, &offer)?;
        if answer.status == CardStatus::OtherInstallation {
            return Err(ExchangeError::OtherInstallation);
        }
        if answer.installation == self.installation {
            return Err(ExchangeError::OwnAnswer);
        }
        let not_newer = answer.status == CardStatus::NotNewer;
        if answer.card.is_empty() {
            return Ok(Answered { document: None, not_newer });
        }
        let config = AgentConfig::parse(answer.card).map_err(|e| ExchangeError::Config(e.to_string()))?;
        if config.node != machine {
            return Err(ExchangeError::Config(format!("it is for {:?}, not {machine:?}", config.node)));
        }
        // Agents of the cluster receive a new document at different times: ignore an older one.
        let document = (config.generation > generation).then(|| answer.card.to_vec());
        Ok(Answered { document, not_newer })
    }
}

/// Agents to exchange with: those of the configuration, then those of the enrollment.
#[must_use]
pub fn endpoints(enrollment: &Enrollment, config: Option<&AgentConfig>) -> Vec<SocketAddrV4> {
    let sites = config.into_iter().flat_map(|config| &config.peers);
    let agents = sites.flat_map(|site| &site.agents).map(|agent| SocketAddrV4::new(agent.address, CARD_PORT));
    let mut seen = BTreeSet::new();
    let all = agents.chain(enrollment.agents.iter().copied());
    all.filter(|each| seen.insert(*each)).take(MAX_ENDPOINTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::{config, document, sealed};
    use crate::documents::enrollment::tests::enrollment;
    use serde_json::json;

    const MACHINE: InstallationId = InstallationId([0xcc; 16]);
    const CLUSTER: InstallationId = InstallationId([0xaa; 16]);

    fn sent(dialogue: &mut Dialogue) -> Sent {
        dialogue.offer(&enrollment(), &MachineReport::new(Some(&config()), ""), 1_000, [4; 16])
    }

    fn answer(sent: &Sent, installation: InstallationId, status: CardStatus, card: &[u8]) -> Vec<u8> {
        let offer = UnverifiedOffer::parse(&sent.message).unwrap();
        CardAnswer { installation, sequence: 1, status, card }.encode(&sent.key, &offer).unwrap()
    }

    fn document_of(node: &str, generation: u64) -> Vec<u8> {
        let mut value = document();
        value["node"] = json!(node);
        value["generation"] = json!(generation);
        sealed(value)
    }

    #[test]
    fn an_offer_reports_the_machine_and_grows() {
        let mut dialogue = Dialogue::new(MACHINE);
        for sequence in [1_000, 1_001] {
            let sent = sent(&mut dialogue);
            let offer = UnverifiedOffer::parse(&sent.message).unwrap().verify(&sent.key).unwrap();
            assert_eq!((offer.sequence, offer.installation), (sequence, MACHINE));
            let report: serde_json::Value = serde_json::from_slice(offer.card).unwrap();
            assert_eq!(
                report,
                json!({"version": "v1alpha1", "software": env!("CARGO_PKG_VERSION"), "generation": config().generation,
                       "hash": config().hash, "problem": ""})
            );
        }
        let long = MachineReport::new(None, &"ä".repeat(400));
        assert_eq!(long.problem.len(), 300);
    }

    #[test]
    fn after_a_refusal_the_next_older_key_signs() {
        let mut enrollment = enrollment();
        enrollment.keys.insert(KeyId::new(2).unwrap(), Key::new([8; 32]));
        let mut dialogue = Dialogue::new(MACHINE);
        let mut ids = Vec::new();
        for _ in 0..3 {
            let sent = dialogue.offer(&enrollment, &MachineReport::new(None, ""), 0, [0; 16]);
            ids.push(UnverifiedOffer::parse(&sent.message).unwrap().header.key_id.as_u16());
            assert_eq!(ids.last(), Some(&sent.key_id.as_u16()));
            dialogue.refused();
        }
        assert_eq!(ids, [2, 1, 2]);
        dialogue.answered();
        let next = dialogue.offer(&enrollment, &MachineReport::new(None, ""), 0, [0; 16]);
        assert_eq!(next.key_id.as_u16(), 2, "after an Answer, the newest key again");
    }

    #[test]
    fn only_newer_documents_of_this_machine_are_taken() {
        let mut dialogue = Dialogue::new(MACHINE);
        let sent = sent(&mut dialogue);
        let newer = document_of("edge1", 12);
        let stored = |card: &[u8]| answer(&sent, CLUSTER, CardStatus::Stored, card);
        let judge = |bytes: &[u8], generation| dialogue.judge(&sent, bytes, "edge1", generation);
        assert_eq!(judge(&stored(&newer), 11).unwrap().document.unwrap(), newer);
        assert_eq!(judge(&stored(&newer), 12), Ok(Answered { document: None, not_newer: false }));
        assert_eq!(judge(&stored(b""), 0), Ok(Answered { document: None, not_newer: false }));
        let late = answer(&sent, CLUSTER, CardStatus::NotNewer, &newer);
        assert!(judge(&late, 12).unwrap().not_newer);
        assert!(matches!(judge(&stored(&document_of("edge2", 12)), 0), Err(ExchangeError::Config(_))));
        assert!(matches!(judge(&stored(b"{}"), 0), Err(ExchangeError::Config(_))));
        let other = answer(&sent, CLUSTER, CardStatus::OtherInstallation, b"");
        assert_eq!(judge(&other, 0), Err(ExchangeError::OtherInstallation));
        assert_eq!(judge(&answer(&sent, MACHINE, CardStatus::Stored, b""), 0), Err(ExchangeError::OwnAnswer));
        let mut forged = stored(&newer);
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(judge(&forged, 0), Err(ExchangeError::Wire(WireError::Tag)));
    }

    #[test]
    fn agents_of_the_configuration_come_before_those_of_the_enrollment() {
        let config = config();
        let first = config.peers[0].agents[0].address;
        let all = endpoints(&enrollment(), Some(&config));
        assert_eq!(all[0], SocketAddrV4::new(first, CARD_PORT));
        assert!(enrollment().agents.iter().all(|agent| all.contains(agent)));
        assert_eq!(endpoints(&enrollment(), None), enrollment().agents);
    }
}
