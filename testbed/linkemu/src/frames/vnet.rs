//! The virtio-net header before each frame of AF_PACKET (`struct virtio_net_hdr`, virtio 1.2, 5.1.6).
//!
//! Packet sockets use the legacy form, in which 16-bit fields are in the machine's byte order.

/// Length of the header in bytes.
pub const VNET_LEN: usize = 10;

/// Flag: the transport checksum is partial; complete it from `csum_start` into `csum_offset`.
pub const NEEDS_CSUM: u8 = 1;
/// Flag: the transport checksum has been verified.
pub const DATA_VALID: u8 = 2;

/// `gso_type`: an ordinary frame.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP datagrams of equal size.
pub const GSO_UDP_L4: u8 = 5;
/// Bit of `gso_type`: CWR is set, and only for the first segment (RFC 3168, 6.1.2).
pub const GSO_ECN: u8 = 0x80;

/// The header's fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_` values, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Length of all headers: a hint without which the kernel allocates 64 KiB in one piece.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Start of checksumming, from the frame's first byte.
    pub csum_start: u16,
    /// Position of the checksum, from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Decode the bytes from the kernel.
    pub fn decode(b: &[u8; VNET_LEN]) -> VnetHeader {
        let word = |i: usize| u16::from_ne_bytes([b[i], b[i + 1]]);
        VnetHeader {
            flags: b[0],
            gso_type: b[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Encode the bytes for the kernel.
    pub fn encode(&self) -> [u8; VNET_LEN] {
        let mut b = [0; VNET_LEN];
        b[0] = self.flags;
        b[1] = self.gso_type;
        b[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        b[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        b[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        b[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        b
    }

    /// True if the checksum is partial.
    pub fn needs_csum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    /// The header for the same frame after inserting `by` bytes (a VLAN tag) before the network header.
    pub fn shifted(mut self, by: u16) -> VnetHeader {
        if self.hdr_len != 0 {
            self.hdr_len = self.hdr_len.saturating_add(by);
        }
        if self.needs_csum() {
            self.csum_start = self.csum_start.saturating_add(by);
        }
        self
    }
}
