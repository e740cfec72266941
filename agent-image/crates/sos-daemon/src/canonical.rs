//! The hash of JSON values in canonical form (spec/controller-config.md clause 2).

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// `sha256:` and the hash of a value; of an object without its `generation` and `hash`.
#[must_use]
pub fn value_hash(mut document: Value) -> String {
    if let Some(fields) = document.as_object_mut() {
        fields.remove("generation");
        fields.remove("hash");
    }
    // Sort explicitly: if another crate enables the feature `preserve_order` of serde_json, objects keep the order of the text.
    document.sort_all_objects();
    let mut hash = "sha256:".to_owned();
    for byte in Sha256::digest(document.to_string().as_bytes()) {
        write!(hash, "{byte:02x}").expect("writing to a String cannot fail");
    }
    hash
}
