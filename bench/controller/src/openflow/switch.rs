//! One emulated switch: answers the requests of a controller, and reports the effects of the controller's commands.

use std::mem;

use crate::network::SwitchPlan;
use crate::openflow::packets::FlowKey;
use crate::openflow::table::{Outcome, Table};
use crate::openflow::wire::{self, FlowMod, Request, WireError, outputs, u16_at};
use crate::stats::Messages;

/// Limit of bytes that the controller has not read; above the limit the run ends, because its measurements would be meaningless.
pub const MAX_UNSENT: usize = 256 * 1024 * 1024;

/// An effect of a controller's command.
#[derive(Debug, PartialEq, Eq)]
pub enum Deed {
    /// A packet was sent to a port; reserved port numbers are kept as in the message.
    Sent {
        /// Port number.
        port: u32,
        /// Frame of the packet.
        frame: Vec<u8>,
    },
    /// An entry for exactly one flow, in the direction of its match, was added.
    Entry(FlowKey),
}

/// An emulated switch.
#[derive(Debug)]
pub struct Switch {
    /// Plan of the switch.
    pub plan: SwitchPlan,
    /// Flow entries.
    pub table: Table,
    /// Messages received from the controller.
    pub messages: Messages,
    /// Bytes to be written to the controller.
    pub out: Vec<u8>,
    /// Number of errors that the controller reported, and of messages that were answered by an error.
    pub errors: u64,
    /// True after the controller has requested the ports: it knows the switch now.
    pub described: bool,
    unread: Vec<u8>,
}

impl Switch {
    /// Create a switch that has just connected; its output starts with Hello.
    pub fn new(plan: SwitchPlan) -> Self {
        let mut out = Vec::new();
        wire::put_hello(&mut out);
        let (table, messages) = (Table::default(), Messages::default());
        Self { plan, table, messages, out, errors: 0, described: false, unread: Vec::new() }
    }

    /// Process bytes of the controller; append the effects to `deeds`.
    ///
    /// # Errors
    /// The bytes are not OpenFlow 1.3.
    pub fn receive(&mut self, bytes: &[u8], deeds: &mut Vec<Deed>) -> Result<(), WireError> {
        self.unread.extend_from_slice(bytes);
        let unread = mem::take(&mut self.unread);
        let mut at = 0;
        while let Some(length) = wire::frame(&unread[at..])? {
            self.message(&unread[at..at + length], deeds)?;
            at += length;
        }
        self.unread = unread;
        self.unread.drain(..at);
        Ok(())
    }

    /// Send a packet to the controller with the cookie of the matching entry; `u64::MAX` means no entry.
    pub fn packet_in(&mut self, cookie: u64, in_port: u32, frame: &[u8]) {
        wire::put_packet_in(&mut self.out, cookie, in_port, frame);
    }

    fn message(&mut self, message: &[u8], deeds: &mut Vec<Deed>) -> Result<(), WireError> {
        let (xid, request) = wire::parse(message)?;
        match request {
            Request::PacketOut(packet) => {
                self.messages.packet_outs += 1;
                for port in outputs(packet.actions) {
                    deeds.push(Deed::Sent { port, frame: packet.data.to_vec() });
                }
            }
            Request::FlowMod(change) => self.flow_mod(xid, &change, message, deeds),
            Request::Barrier => {
                self.messages.barriers += 1;
                wire::put(&mut self.out, 21, xid, |_| ());
            }
            Request::Multipart(kind, body) => self.multipart(xid, kind, body, message),
            Request::Unknown => self.refuse(xid, (1, 1), message),
            Request::Silent => self.errors += u64::from(message[1] == 1),
            Request::Hello => (),
            rest => self.answer(xid, &rest),
        }
        Ok(())
    }

    fn answer(&mut self, xid: u32, request: &Request<'_>) {
        let out = &mut self.out;
        match request {
            Request::Echo(payload) => wire::put(out, 3, xid, |b| b.extend_from_slice(payload)),
            Request::Features => wire::put_features(out, xid, self.plan.dpid),
            Request::GetConfig => wire::put(out, 8, xid, |b| b.extend_from_slice(&[0, 0, 0xFF, 0xFF])),
            Request::Role(role, generation) => wire::put(out, 25, xid, |b| {
                b.extend_from_slice(&role.to_be_bytes());
                b.extend_from_slice(&[0; 4]);
                b.extend_from_slice(&generation.to_be_bytes());
            }),
            Request::GetAsync => wire::put(out, 27, xid, |b| b.extend_from_slice(&[0, 0, 0, 7].repeat(6))),
            Request::QueueConfig(port) => wire::put(out, 23, xid, |b| {
                b.extend_from_slice(&port.to_be_bytes());
                b.extend_from_slice(&[0; 4]);
            }),
            _ => (),
        }
    }

    fn flow_mod(&mut self, xid: u32, change: &FlowMod<'_>, message: &[u8], deeds: &mut Vec<Deed>) {
        match self.table.apply(change) {
            Outcome::Added => {
                self.messages.adds += 1;
                deeds.extend(exact_flow(change.oxms).map(Deed::Entry));
            }
            Outcome::Changed => self.messages.deletes += 1,
            Outcome::Full => self.refuse(xid, (5, 1), message),
        }
    }

    /// Append multipart replies (7.3.5): complete for requests of a controller's start-up, empty for unused statistics.
    fn multipart(&mut self, xid: u32, kind: u16, body: &[u8], message: &[u8]) {
        match kind {
            0 => wire::put_multipart(&mut self.out, xid, 0, false, &description(&self.plan.name)),
            1 => self.table.put_stats(&mut self.out, xid, body),
            2 => {
                let mut total = [0; 24];
                total[16..20]
                    .copy_from_slice(&u32::try_from(self.table.len()).unwrap_or(u32::MAX).to_be_bytes());
                wire::put_multipart(&mut self.out, xid, 2, false, &total);
            }
            13 => {
                let mut ports = Vec::new();
                for number in &self.plan.ports {
                    let [.., a, b] = self.plan.dpid.to_be_bytes();
                    let [.., c, d] = number.to_be_bytes();
                    wire::put_port(&mut ports, *number, [2, 0xF0, a, b, c, d], &format!("p{number}"));
                }
                wire::put_multipart(&mut self.out, xid, 13, false, &ports);
                self.described = true;
            }
            3..=7 | 9 | 10 => wire::put_multipart(&mut self.out, xid, kind, false, &[]),
            _ => self.refuse(xid, (1, 2), message),
        }
    }

    fn refuse(&mut self, xid: u32, why: (u16, u16), message: &[u8]) {
        self.errors += 1;
        wire::put_error(&mut self.out, xid, why.0, why.1, message);
    }
}

/// Switch description: manufacturer, hardware, software, serial number, datapath (7.3.5.1).
fn description(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (text, size) in
        [("SOS", 256), ("emulated", 256), (env!("CARGO_PKG_VERSION"), 256), ("none", 32), (name, 256)]
    {
        let bytes = &text.as_bytes()[..text.len().min(size - 1)];
        out.extend_from_slice(bytes);
        out.resize(out.len() + size - bytes.len(), 0);
    }
    out
}

/// Flow of an exact match; None if an address or port is missing in the match.
fn exact_flow(oxms: &[u8]) -> Option<FlowKey> {
    let (mut key, mut found, mut at) = ([0; 12], 0, 0);
    while at + 4 <= oxms.len() {
        let length = usize::from(oxms[at + 3]);
        let value = oxms.get(at + 4..at + 4 + length)?;
        let part = match (u16_at(oxms, at), oxms[at + 2], length) {
            (0x8000, 0x16, 4) => Some(0..4),
            (0x8000, 0x18, 4) => Some(4..8),
            (0x8000, 0x1A, 2) => Some(8..10),
            (0x8000, 0x1C, 2) => Some(10..12),
            _ => None,
        };
        if let Some(part) = part {
            key[part].copy_from_slice(value);
            found += 1;
        }
        at += 4 + length;
    }
    (found == 4).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch() -> Switch {
        let mut switch = Switch::new(SwitchPlan { dpid: 5, name: "s5".into(), ports: vec![1, 2] });
        switch.out.clear();
        switch
    }

    #[test]
    fn handshake_is_answered_for_any_split_of_its_bytes() {
        let asked = [
            [4, 0, 0, 8, 0, 0, 0, 1].as_slice(),
            &[4, 5, 0, 8, 0, 0, 0, 2],
            &[4, 18, 0, 16, 0, 0, 0, 3, 0, 13, 0, 0, 0, 0, 0, 0],
            &[4, 20, 0, 8, 0, 0, 0, 4],
        ]
        .concat();
        let (mut whole, mut cut, mut deeds) = (switch(), switch(), Vec::new());
        whole.receive(&asked, &mut deeds).expect("OpenFlow");
        asked.iter().for_each(|byte| cut.receive(&[*byte], &mut deeds).expect("OpenFlow"));
        assert_eq!(whole.out, cut.out);
        assert_eq!(whole.out.len(), 32 + 16 + 2 * 64 + 8);
        assert!(whole.described && deeds.is_empty());
    }

    #[test]
    fn unknown_messages_are_answered_by_an_error() {
        let mut switch = switch();
        switch
            .receive(&[4, 18, 0, 16, 0, 0, 0, 9, 0, 12, 0, 0, 0, 0, 0, 0], &mut Vec::new())
            .expect("OpenFlow");
        assert_eq!(
            (&switch.out[..2], &switch.out[4..12]),
            ([4, 1].as_slice(), [0, 0, 0, 9, 0, 1, 0, 2].as_slice())
        );
    }

    #[test]
    fn only_a_match_of_both_addresses_and_ports_is_a_flow() {
        let exact = [
            0x80, 0, 0x16, 4, 10, 0, 0, 1, 0x80, 0, 0x18, 4, 10, 0, 1, 2, 0x80, 0, 0x1A, 2, 0, 7, 0x80, 0,
            0x1C, 2, 0, 9,
        ];
        assert_eq!(exact_flow(&exact), Some([10, 0, 0, 1, 10, 0, 1, 2, 0, 7, 0, 9]));
        assert_eq!(exact_flow(&exact[..22]), None);
        assert_eq!(exact_flow(&exact[..27]), None);
    }
}
