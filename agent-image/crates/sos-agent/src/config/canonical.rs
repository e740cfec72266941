//! Canonical JSON, the input of a configuration document's hash (spec/controller-config.md clause 2).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// `sha256:` and the hash of the document without its `generation` and `hash`.
///
/// # Errors
/// The text is not JSON.
pub fn document_hash(text: &[u8]) -> Result<String, serde_json::Error> {
    let mut document: Value = serde_json::from_slice(text)?;
    if let Value::Object(fields) = &mut document {
        fields.remove("generation");
        fields.remove("hash");
    }
    let mut canonical = String::with_capacity(text.len());
    write_value(&document, &mut canonical);
    let mut hash = String::from("sha256:");
    for byte in Sha256::digest(canonical.as_bytes()) {
        write!(hash, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Ok(hash)
}

/// Writes a value with sorted keys. The map of `serde_json` is unsorted if another crate enables the feature `preserve_order`.
fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            out.push('{');
            for (i, (key, field)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_scalar(&Value::String(key.clone()), out);
                out.push(':');
                write_value(field, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        scalar => write_scalar(scalar, out),
    }
}

fn write_scalar(value: &Value, out: &mut String) {
    write!(out, "{value}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_ignores_key_order_white_space_generation_and_hash() {
        let one = br#"{"b": [1, {"z": null, "a": "x"}], "generation": 3, "hash": "sha256:00", "a": true}"#;
        let two = br#"{"a":true,"b":[1,{"a":"x","z":null}]}"#;
        assert_eq!(document_hash(one).unwrap(), document_hash(two).unwrap());
    }

    #[test]
    fn agrees_with_an_independently_computed_hash() {
        // printf '{"a":true,"b":[1,{"a":"x","z":null}]}' | sha256sum
        let expected = "sha256:9fad447aa27c4a7b8385e0d000319aaf9c255ff798da4c706cb8e99735844c1f";
        assert_eq!(document_hash(br#"{"b":[1,{"z":null,"a":"x"}],"a":true}"#).unwrap(), expected);
    }
}
