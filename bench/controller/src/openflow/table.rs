//! Simplified flow table: reports the controller's entries, and selects the packets to send to the controller.
//!
//! Entries are identified by table, priority and the bytes of the match, so a controller has to encode the same match identically
//! each time, as controllers do. Timeouts are ignored, because a measurement takes only seconds.

use std::collections::{BTreeMap, HashMap};

use crate::openflow::wire::{FlowMod, put_multipart, reaches_controller, u16_at, u32_at};

/// Limit of entries of one switch; further entries are refused, as by a hardware table.
pub const MAX_ENTRIES: usize = 262_144;

/// Bytes of entries after which the next part of a multipart reply starts; below the limit of 64 KiB of a message.
const PART: usize = 60_000;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Clone)]
struct Identity {
    table: u8,
    priority: u16,
    oxms: Box<[u8]>,
}

#[derive(Debug)]
struct Entry {
    cookie: u64,
    timeouts: (u16, u16),
    flags: u16,
    instructions: Box<[u8]>,
}

/// Result of a flow-mod.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Outcome {
    /// An entry was added or replaced.
    Added,
    /// Any number of entries was changed or deleted.
    Changed,
    /// The table is full.
    Full,
}

/// Flow entries of a switch.
#[derive(Debug, Default)]
pub struct Table {
    entries: HashMap<Identity, Entry>,
    /// Cookies of the entries that send packets to the controller.
    punts: BTreeMap<Identity, u64>,
    /// Number of changes of `punts`.
    version: u64,
}

impl Table {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of changes of the entries that send packets to the controller: while it is the same, `punts` has the same results.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Apply a flow-mod (6.4).
    pub fn apply(&mut self, change: &FlowMod<'_>) -> Outcome {
        let identity = Identity { table: change.table, priority: change.priority, oxms: change.oxms.into() };
        match change.command {
            0 => self.add(identity, change),
            1 | 2 => {
                if let Some(entry) = self.entries.get_mut(&identity) {
                    entry.instructions = change.instructions.into();
                }
                Outcome::Changed
            }
            4 => {
                let meant = |e: &Entry| (e.cookie ^ change.cookie) & change.cookie_mask == 0;
                if self.entries.get(&identity).is_some_and(meant) {
                    self.entries.remove(&identity);
                    self.version += u64::from(self.punts.remove(&identity).is_some());
                }
                Outcome::Changed
            }
            _ => {
                self.delete(change);
                Outcome::Changed
            }
        }
    }

    fn add(&mut self, identity: Identity, change: &FlowMod<'_>) -> Outcome {
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&identity) {
            return Outcome::Full;
        }
        if reaches_controller(change.instructions) {
            let before = self.punts.insert(identity.clone(), change.cookie);
            self.version += u64::from(before != Some(change.cookie));
        }
        let (cookie, timeouts, flags) = (change.cookie, change.timeouts, change.flags);
        self.entries
            .insert(identity, Entry { cookie, timeouts, flags, instructions: change.instructions.into() });
        Outcome::Added
    }

    /// Delete all entries with this table and cookie; if the match is not empty, only entries with the same match.
    fn delete(&mut self, change: &FlowMod<'_>) {
        let meant = |identity: &Identity, cookie: u64| {
            (change.table == 0xFF || change.table == identity.table)
                && (change.oxms.is_empty() || change.oxms == &*identity.oxms)
                && (cookie ^ change.cookie) & change.cookie_mask == 0
        };
        self.entries.retain(|identity, entry| !meant(identity, entry.cookie));
        self.punts.retain(|identity, cookie| !meant(identity, *cookie));
        self.version += 1;
    }

    /// Cookie of the entry that sends a frame to the controller; None without such an entry. Compares the frame with all these entries.
    pub fn punts(&self, in_port: u32, frame: &[u8]) -> Option<u64> {
        let matching = self.punts.iter().filter(|(identity, _)| matches(&identity.oxms, in_port, frame));
        matching
            .max_by_key(|(identity, _)| (identity.table == 0, identity.priority))
            .map(|(_, cookie)| *cookie)
    }

    /// Append the reply to a flow statistics request (7.3.5.2), in as many parts as needed.
    pub fn put_stats(&self, out: &mut Vec<u8>, xid: u32, request: &[u8]) {
        let filter = (request.len() >= 32).then(|| (u64_at(request, 16), u64_at(request, 24), request[0]));
        let mut part = Vec::new();
        for (identity, entry) in &self.entries {
            let wanted = filter.is_none_or(|(cookie, mask, table)| {
                (entry.cookie ^ cookie) & mask == 0 && (table == 0xFF || table == identity.table)
            });
            if wanted {
                if part.len() > PART {
                    put_multipart(out, xid, 1, true, &part);
                    part.clear();
                }
                put_entry(&mut part, identity, entry);
            }
        }
        put_multipart(out, xid, 1, false, &part);
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    crate::openflow::wire::u64_at(bytes, at)
}

fn put_entry(out: &mut Vec<u8>, identity: &Identity, entry: &Entry) {
    let match_length = 4 + identity.oxms.len();
    let length = 48 + match_length.next_multiple_of(8) + entry.instructions.len();
    for field in
        [u16::try_from(length).expect("an entry came in one message"), u16::from(identity.table) << 8]
    {
        out.extend_from_slice(&field.to_be_bytes());
    }
    out.extend_from_slice(&[0; 8]);
    for field in [identity.priority, entry.timeouts.0, entry.timeouts.1, entry.flags, 0, 0] {
        out.extend_from_slice(&field.to_be_bytes());
    }
    out.extend_from_slice(&entry.cookie.to_be_bytes());
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&1_u16.to_be_bytes());
    out.extend_from_slice(&u16::try_from(match_length).expect("a match came in one message").to_be_bytes());
    out.extend_from_slice(&identity.oxms);
    out.extend_from_slice(&[0; 8][..match_length.next_multiple_of(8) - match_length]);
    out.extend_from_slice(&entry.instructions);
}

/// True if a frame from a port matches (7.2.3). A match with an unknown field matches no frame.
fn matches(mut oxms: &[u8], in_port: u32, frame: &[u8]) -> bool {
    while oxms.len() >= 4 {
        let (class, field, masked) = (u16_at(oxms, 0), oxms[2] >> 1, oxms[2] & 1 == 1);
        let end = 4 + usize::from(oxms[3]);
        // experimenter fields start with the experimenter id
        let start = if class == 0xFFFF { 8 } else { 4 };
        if end > oxms.len() || start > end {
            return false;
        }
        let Some(have) = value(class, field, in_port, frame) else { return false };
        let (want, mask) = oxms[start..end].split_at(if masked { (end - start) / 2 } else { end - start });
        let differs =
            |i: usize| (have[8 - want.len() + i] ^ want[i]) & mask.get(i).copied().unwrap_or(0xFF) != 0;
        if want.len() > 8 || (0..want.len()).any(differs) {
            return false;
        }
        oxms = &oxms[end..];
    }
    oxms.is_empty()
}

/// Value of a field of a frame, right-aligned in eight bytes; None if the frame does not have this field.
fn value(class: u16, field: u8, in_port: u32, frame: &[u8]) -> Option<[u8; 8]> {
    if frame.len() < 42 {
        return None;
    }
    let ip = u16_at(frame, 12) == 0x0800;
    let (tcp, udp) = (ip && frame[23] == 6, ip && frame[23] == 17);
    let number = match (class, field) {
        (0x8000, 0) => u64::from(in_port),
        (0x8000, 3) => u64::from(u16_at(frame, 0)) << 32 | u64::from(u32_at(frame, 2)),
        (0x8000, 4) => u64::from(u16_at(frame, 6)) << 32 | u64::from(u32_at(frame, 8)),
        (0x8000, 5) => u64::from(u16_at(frame, 12)),
        // OFPVID_NONE (7.2.3.8): the emulated hosts send untagged frames
        (0x8000, 6) => 0,
        (0x8000, 10) if ip => u64::from(frame[23]),
        (0x8000, 11) if ip => u64::from(u32_at(frame, 26)),
        (0x8000, 12) if ip => u64::from(u32_at(frame, 30)),
        (0x8000, 13) if tcp => u64::from(u16_at(frame, 34)),
        (0x8000, 14) if tcp => u64::from(u16_at(frame, 36)),
        (0x8000, 15) if udp => u64::from(u16_at(frame, 34)),
        (0x8000, 16) if udp => u64::from(u16_at(frame, 36)),
        (0xFFFF, 42) if tcp && frame.len() > 47 => u64::from(u16_at(frame, 46) & 0xFFF),
        _ => return None,
    };
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openflow::packets::{Party, syn};
    use crate::openflow::wire::{PORT_CONTROLLER, Request, parse};
    use std::net::Ipv4Addr;

    /// Match of untagged frames, ethertype IPv4, protocol TCP, destination 10.0.1.0/24, bare SYN.
    const SYNS: &[u8] = &[
        0x80, 0, 12, 2, 0, 0, //
        0x80, 0, 10, 2, 8, 0, 0x80, 0, 20, 1, 6, 0x80, 0, 25, 8, 10, 0, 1, 0, 255, 255, 255, 0, //
        0xFF, 0xFF, 85, 8, 0x4F, 0x4E, 0x46, 0, 0, 2, 0, 0x17,
    ];

    fn to(port: u32) -> Vec<u8> {
        let mut instructions = vec![0, 4, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16];
        instructions.extend_from_slice(&port.to_be_bytes());
        instructions.extend_from_slice(&[0; 8]);
        instructions
    }

    fn change<'a>(
        command: u8,
        cookie: u64,
        priority: u16,
        oxms: &'a [u8],
        instructions: &'a [u8],
    ) -> FlowMod<'a> {
        let mask = if command == 0 { 0 } else { u64::MAX };
        FlowMod {
            cookie,
            cookie_mask: mask,
            table: 0,
            command,
            timeouts: (0, 5),
            priority,
            flags: 0,
            oxms,
            instructions,
        }
    }

    fn frame(last: u8) -> Vec<u8> {
        let party = |c, d| Party { mac: [2, 0, 0, 0, c, d], address: Ipv4Addr::new(10, 0, c, d) };
        syn(party(0, 1), party(last, 2), (1, 2), 3)
    }

    #[test]
    fn punt_has_the_cookie_of_the_matching_entry_with_the_highest_priority() {
        let mut table = Table::default();
        let up = to(PORT_CONTROLLER);
        table.apply(&change(0, 7, 100, SYNS, &up));
        table.apply(&change(0, 8, 0, &[], &up));
        table.apply(&change(0, 9, 200, SYNS, &to(1)));
        assert_eq!((table.punts(1, &frame(1)), table.punts(1, &frame(2))), (Some(7), Some(8)));
        table.apply(&change(4, 7, 100, SYNS, &[]));
        assert_eq!(table.punts(1, &frame(1)), Some(8));
    }

    #[test]
    fn an_entry_for_a_vlan_matches_no_untagged_frame() {
        let (mut table, up) = (Table::default(), to(PORT_CONTROLLER));
        table.apply(&change(0, 7, 100, &[0x80, 0, 12, 2, 0x10, 5], &up));
        assert_eq!(table.punts(1, &frame(1)), None);
        table.apply(&change(0, 8, 100, &[0x80, 0, 12, 2, 0, 0], &up));
        assert_eq!(table.punts(1, &frame(1)), Some(8));
    }

    #[test]
    fn strict_delete_removes_only_an_entry_with_its_cookie() {
        let mut table = Table::default();
        table.apply(&change(0, 7, 100, SYNS, &[]));
        table.apply(&change(4, 6, 100, SYNS, &[]));
        assert_eq!(table.len(), 1);
        table.apply(&change(4, 7, 100, SYNS, &[]));
        assert!(table.is_empty());
    }

    #[test]
    fn statistics_have_each_entry_once_and_are_split_into_messages() {
        let mut table = Table::default();
        let up = to(PORT_CONTROLLER);
        for priority in 0..2000 {
            table.apply(&change(0, 7, priority, SYNS, &up));
        }
        let mut out = Vec::new();
        table.put_stats(&mut out, 5, &[]);
        let (mut at, mut entries, mut parts) = (0, 0, 0);
        while at < out.len() {
            let length = usize::from(u16_at(&out, at + 2));
            let mut entry = at + 16;
            while entry < at + length {
                entry += usize::from(u16_at(&out, entry));
                entries += 1;
            }
            assert_eq!((entry, out[at + 11] == 1), (at + length, at + length < out.len()));
            (at, parts) = (at + length, parts + 1);
        }
        assert_eq!((entries, parts), (2000, 4));
    }

    #[test]
    fn parsed_flow_mod_is_applied() {
        let mut message = vec![4, 14, 0, 56, 0, 0, 0, 1];
        message.extend_from_slice(&[0; 40]);
        message.extend_from_slice(&[0, 1, 0, 4, 0, 0, 0, 0]);
        let Ok((1, Request::FlowMod(change))) = parse(&message) else { panic!("not a flow-mod") };
        assert_eq!(Table::default().apply(&change), Outcome::Added);
    }
}
