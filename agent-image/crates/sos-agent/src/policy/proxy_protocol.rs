//! Header of the PROXY protocol, version 2 (haproxy's specification, section 2.2): names the client at the start of a connection whose source
//! address is the agent's.

use std::net::SocketAddrV4;

use crate::policy::flow_key::FlowKey;

/// Length of a header for TCP over IPv4: 16 bytes, then two addresses and two ports.
pub const HEADER_LEN: usize = 28;
/// First bytes of every header, which are not the start of a request of any common protocol.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY: the connection was opened on behalf of another host.
const VERSION_AND_COMMAND: u8 = 0x21;
/// TCP over IPv4.
const TCP_OVER_IPV4: u8 = 0x11;
/// Length of the addresses and ports, which follow the length field.
const ADDRESSES_LEN: u16 = 12;

/// Header of a flow: the client's address and port as source, the server's as the client has dialed it as destination.
#[must_use]
pub fn header(flow: FlowKey) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..12].copy_from_slice(&SIGNATURE);
    header[12] = VERSION_AND_COMMAND;
    header[13] = TCP_OVER_IPV4;
    header[14..16].copy_from_slice(&ADDRESSES_LEN.to_be_bytes());
    put(&mut header, flow.client, 16, 24);
    put(&mut header, flow.server, 20, 26);
    header
}

/// Writes an address and a port, in network byte order, at these positions.
fn put(header: &mut [u8; HEADER_LEN], host: SocketAddrV4, address_at: usize, port_at: usize) {
    header[address_at..address_at + 4].copy_from_slice(&host.ip().octets());
    header[port_at..port_at + 2].copy_from_slice(&host.port().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_bytes_of_the_specification() {
        let flow = FlowKey {
            client: "192.0.2.11:56324".parse().unwrap(),
            server: "198.51.100.139:443".parse().unwrap(),
        };
        let expected: [u8; HEADER_LEN] = [
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, // signature
            0x21, 0x11, 0x00, 0x0c, // version 2 and PROXY, TCP over IPv4, 12 bytes follow
            192, 0, 2, 11, 198, 51, 100, 139, // source address, destination address
            0xdc, 0x04, 0x01, 0xbb, // source port, destination port
        ];
        assert_eq!(header(flow), expected);
    }

    #[test]
    fn the_length_field_covers_the_rest_of_the_header() {
        assert_eq!(usize::from(ADDRESSES_LEN), HEADER_LEN - 16);
    }
}
