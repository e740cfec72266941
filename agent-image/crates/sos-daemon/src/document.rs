//! Configuration documents: strict parsing, errors with their JSON path, and the hash (spec/controller-config.md clause 2).

use serde::de::DeserializeOwned;

use crate::canonical::value_hash;
use crate::parts;

pub use crate::error::ConfigError;

/// Maximum size of a document in bytes (node-config.md clauses 2 and 13).
pub const MAX_DOCUMENT_BYTES: usize = 4 * 1024 * 1024;

/// Parses a document of at most [`MAX_DOCUMENT_BYTES`], its [`parts`] included. The type decides whether unknown fields are refused.
///
/// # Errors
/// The first error, with its JSON path.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, ConfigError> {
    if text.len() > MAX_DOCUMENT_BYTES {
        return Err(ConfigError::new(".", format!("larger than {MAX_DOCUMENT_BYTES} bytes")));
    }
    if let Some(joined) = parts::join(text)? {
        return serde_path_to_error::deserialize(joined.whole)
            .map_err(|e| structural(&e.path().to_string(), e.inner().to_string()));
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let document = serde_path_to_error::deserialize(&mut reader)
        .map_err(|e| structural(&e.path().to_string(), e.inner().to_string()))?;
    reader.end().map_err(|e| ConfigError::new(".", e.to_string()))?;
    Ok(document)
}

/// Serde's path names only the object in which a field is missing, so this function appends the field.
fn structural(path: &str, message: String) -> ConfigError {
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    // A key that is the empty string has an empty path, and text that ends too early has the path `?`.
    let path = if path.is_empty() || path == "?" { "." } else { path };
    match missing {
        Some(field) if path == "." => ConfigError::new(field, "is missing"),
        Some(field) => ConfigError::new(format!("{path}.{field}"), "is missing"),
        None => ConfigError::new(path, message),
    }
}

/// Checks that a document has the hash that it states.
///
/// # Errors
/// The text is not JSON, or its content has another hash.
pub fn check_hash(text: &[u8], stated: &str) -> Result<(), ConfigError> {
    let hash = document_hash(text)?;
    if hash == stated {
        Ok(())
    } else {
        Err(ConfigError::new("hash", format!("is {stated}, the document's is {hash}")))
    }
}

/// `sha256:` and the hash of a document without its `generation` and `hash`, in canonical form. The hashes of parts stand for the parts.
///
/// # Errors
/// The text is not JSON, or its parts cannot be merged.
pub fn document_hash(text: &[u8]) -> Result<String, ConfigError> {
    if let Some(joined) = parts::join(text)? {
        return Ok(value_hash(joined.own));
    }
    serde_json::from_slice(text).map(value_hash).map_err(|e| ConfigError::new(".", e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Document {
        #[allow(dead_code)]
        inner: Inner,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[allow(dead_code)]
        number: u8,
    }

    #[test]
    fn errors_name_the_field() {
        let errors = [
            ("{}", "inner: is missing"),
            (r#"{"inner": {}}"#, "inner.number: is missing"),
            (r#"{"inner": {"number": 256}}"#, "inner.number: "),
            (r#"{"inner": {"number": 1}, "more": 1}"#, "more: unknown field"),
            (r#"{"inner": {"number": 1}} x"#, ".: "),
            ("{", ".: "),
        ];
        for (text, expected) in errors {
            let error = parse::<Document>(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error} is not {expected}");
        }
        let error = parse::<Document>(&vec![b' '; MAX_DOCUMENT_BYTES + 1]).unwrap_err().to_string();
        assert!(error.starts_with(".: larger than"), "{error}");
        assert_eq!(ConfigError::new("", "x").to_string(), ".: x");
    }

    #[test]
    fn the_hash_ignores_key_order_white_space_generation_and_hash() {
        let one = br#"{"b": [1, {"z": null, "a": "x"}], "generation": 3, "hash": "sha256:00", "a": true}"#;
        let two = br#"{"a":true,"b":[1,{"a":"x","z":null}]}"#;
        assert_eq!(document_hash(one).unwrap(), document_hash(two).unwrap());
        assert_eq!(check_hash(one, &document_hash(two).unwrap()), Ok(()));
        assert_eq!(check_hash(one, "sha256:00").unwrap_err().path, "hash");
    }

    #[test]
    fn agrees_with_an_independently_computed_hash() {
        // printf '{"a":true,"b":[1,{"a":"x","z":null}]}' | sha256sum
        let expected = "sha256:9fad447aa27c4a7b8385e0d000319aaf9c255ff798da4c706cb8e99735844c1f";
        assert_eq!(document_hash(br#"{"b":[1,{"z":null,"a":"x"}],"a":true}"#).unwrap(), expected);
    }
}
