//! Hexadecimal text of ids, keys and MAC addresses.

/// Decodes exactly `N` bytes; `None` for any other length or digit.
#[must_use]
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Encodes in lower case.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses `02:53:00:5f:0c:12`.
#[must_use]
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let [value] = decode::<1>(parts.next()?)?;
        *byte = value;
    }
    parts.next().is_none().then_some(mac)
}

/// Prints a MAC address as [`parse_mac`] reads it.
#[must_use]
pub fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_undoes_encode(bytes: [u8; 16]) {
            prop_assert_eq!(decode::<16>(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn mac_text_is_read_back(mac: [u8; 6]) {
            prop_assert_eq!(parse_mac(&format_mac(mac)), Some(mac));
        }

        #[test]
        fn any_text_is_judged(text in "\\PC{0,40}") {
            let _ = decode::<16>(&text);
            let _ = parse_mac(&text);
        }
    }

    #[test]
    fn near_misses_are_refused() {
        for text in ["02:53:00:5f:0c", "02:53:00:5f:0c:12:13", "2:53:00:5f:0c:12", "02-53-00-5f-0c-12", "+2:53:00:5f:0c:12"] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
