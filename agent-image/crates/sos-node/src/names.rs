//! Names and texts of a config that are used on command lines: types that exclude dangerous characters.

use std::fmt;
use std::net::SocketAddr;

use serde::Deserialize;

/// Maximum length of an interface name in the kernel (IFNAMSIZ - 1).
const MAX_INTERFACE_NAME: usize = 15;
/// Maximum length of a match or action list of a base flow entry, in bytes.
const MAX_FLOW_TEXT: usize = 2_048;

/// Name of a network device, a port or a bridge: 1 to 15 letters, digits, `.`, `_` and `-`, the first a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct DeviceName(String);

impl DeviceName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = text.len() <= MAX_INTERFACE_NAME
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        if good { Ok(Self(text)) } else { Err(format!("`{text}` is not the name of a network device")) }
    }
}

/// A datapath id, written as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DatapathId(pub u64);

impl fmt::Display for DatapathId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl TryFrom<String> for DatapathId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(&text, 16) {
            Ok(id) if digits && id != 0 => Ok(Self(id)),
            _ => Err(format!("`{text}` is not a datapath id of 16 hexadecimal digits other than zero")),
        }
    }
}

/// Address of a controller: `tcp:ADDRESS:PORT` or `ssl:ADDRESS:PORT`, numeric.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ControllerTarget(String);

impl ControllerTarget {
    /// The target in Open vSwitch's form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ControllerTarget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text.strip_prefix("tcp:").or_else(|| text.strip_prefix("ssl:"));
        match address.map(str::parse::<SocketAddr>) {
            Some(Ok(_)) => Ok(Self(text)),
            _ => Err(format!("`{text}` is not tcp:ADDRESS:PORT or ssl:ADDRESS:PORT")),
        }
    }
}

/// A match or an action list in the syntax of ovs-ofctl(8), on one line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FlowText(String);

impl FlowText {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FlowText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() > MAX_FLOW_TEXT {
            return Err(format!("longer than {MAX_FLOW_TEXT} bytes"));
        }
        // A line feed would start a second entry, and a hash sign would comment out the rest of the entry.
        if text.chars().any(|c| c.is_control() || c == '#') {
            return Err("holds a control character or a hash sign".into());
        }
        Ok(Self(text))
    }
}
