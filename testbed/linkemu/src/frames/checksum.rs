//! The Internet checksum (RFC 1071) of the headers that the emulator rewrites.

/// One's complement sum of `bytes` as big-endian 16-bit words, added to `start`; not yet folded.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let total = words.by_ref().fold(start, |acc, w| {
        acc + u64::from(u16::from_be_bytes([w[0], w[1]]))
    });
    match words.remainder() {
        [last] => total + (u64::from(*last) << 8),
        _ => total,
    }
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The value for an IPv4 header's checksum field. The field itself (bytes 10 and 11) counts as zero.
pub fn ipv4_header(header: &[u8]) -> u16 {
    !fold(sum(&header[12..], sum(&header[..10], 0)))
}

/// The *partial* checksum that a stack leaves in a TCP or UDP header for offload to complete: the folded pseudo-header
/// sum, not complemented (virtio 1.2, 5.1.6.2). `addresses` is source and destination as in the IP header.
pub fn partial(addresses: &[u8], protocol: u8, l4_len: usize) -> u16 {
    let rest = u64::from(protocol) + (l4_len as u64 & 0xffff) + (l4_len as u64 >> 16);
    fold(sum(addresses, rest))
}

/// True if the complete checksum inside `l4` (header and payload) is valid.
pub fn transport_is_right(addresses: &[u8], protocol: u8, l4: &[u8]) -> bool {
    let pseudo = u64::from(partial(addresses, protocol, l4.len()));
    fold(sum(l4, pseudo)) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_known_ipv4_header_matches() {
        // The worked example of many textbooks: checksum 0xb861.
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8,
            0, 0xc7,
        ];
        assert_eq!(ipv4_header(&header), 0xb861);
    }

    #[test]
    fn a_completed_partial_checksum_is_valid() {
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        let mut segment = vec![7u8; 41];
        let start = partial(&addresses, 6, segment.len());
        segment[16..18].copy_from_slice(&start.to_be_bytes());
        let complete = !fold(sum(&segment, 0));
        segment[16..18].copy_from_slice(&complete.to_be_bytes());
        assert!(transport_is_right(&addresses, 6, &segment));
        segment[30] ^= 1;
        assert!(!transport_is_right(&addresses, 6, &segment));
    }
}
