//! Parts of documents: members that many documents of a folder have in common, in files of their own (spec/node-config.md clause 46).
//!
//! A document names its parts by their hashes (`include`). [`fill`] puts the parts in place of the hashes; the result needs no other file,
//! so it can be stored, compared and parsed as a whole. [`join`] checks the parts' hashes and merges them into the document.

use serde_json::{Map, Value};

use crate::canonical::value_hash;
use crate::error::ConfigError;

/// Maximum number of parts of a document.
pub const MAX_PARTS: usize = 4;
/// The member that lists a document's parts.
const INCLUDE: &str = "include";
/// Byte sequence that every document with parts contains, so that other documents are not parsed twice.
const MARK: &[u8] = b"\"include\"";

/// True if the text may have parts.
fn possible(text: &[u8]) -> bool {
    text.windows(MARK.len()).any(|window| window == MARK)
}

/// Puts the parts of a document in place of their hashes; `None` if the text has none. `read` returns the content of a part by the name of
/// its file, `part-<64 hexadecimal digits>.json`; a part that it does not find stays a hash, which [`join`] refuses.
#[must_use]
pub fn fill(text: &[u8], read: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    if !possible(text) {
        return None;
    }
    let mut document: Value = serde_json::from_slice(text).ok()?;
    for part in document.get_mut(INCLUDE)?.as_array_mut()?.iter_mut().take(MAX_PARTS) {
        let Some(digits) = part.as_str().and_then(hash_digits) else { continue };
        let content = read(&format!("part-{digits}.json"));
        if let Some(content) = content.and_then(|content| serde_json::from_slice(&content).ok()) {
            *part = content;
        }
    }
    serde_json::to_vec(&document).ok()
}

/// The digits of a hash; `None` if the text is not a hash, so that no text of a document becomes another path.
fn hash_digits(hash: &str) -> Option<&str> {
    let digits = hash.strip_prefix("sha256:")?;
    let valid = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
    valid.then_some(digits)
}

/// A document as one object, and as the object that its hash covers.
#[derive(Debug)]
pub struct Joined {
    /// The document with the members of all parts, without `include`.
    pub whole: Value,
    /// The document with the hashes of its parts.
    pub own: Value,
}

/// Merges a document with its parts; `None` if it has none.
///
/// # Errors
/// A part is missing, or has a member that the document or another part has, too. The hash of the result's `own` must still be checked: it
/// covers the hashes of the parts.
pub fn join(text: &[u8]) -> Result<Option<Joined>, ConfigError> {
    if !possible(text) {
        return Ok(None);
    }
    let Ok(Value::Object(mut own)) = serde_json::from_slice(text) else { return Ok(None) };
    let Some(include) = own.remove(INCLUDE) else { return Ok(None) };
    let Value::Array(parts) = include else { return Err(ConfigError::new(INCLUDE, "is no list")) };
    if parts.len() > MAX_PARTS {
        return Err(ConfigError::new(INCLUDE, format!("{} of at most {MAX_PARTS}", parts.len())));
    }
    let mut whole = own.clone();
    let mut hashes = Vec::with_capacity(parts.len());
    for (i, part) in parts.into_iter().enumerate() {
        let path = format!("{INCLUDE}[{i}]");
        hashes.push(Value::String(value_hash(part.clone())));
        merge(&mut whole, part, &path)?;
    }
    own.insert(INCLUDE.to_owned(), Value::Array(hashes));
    Ok(Some(Joined { whole: Value::Object(whole), own: Value::Object(own) }))
}

fn merge(whole: &mut Map<String, Value>, part: Value, path: &str) -> Result<(), ConfigError> {
    let members = match part {
        Value::Object(members) => members,
        Value::String(hash) => return Err(ConfigError::new(path, format!("the file of {hash} is missing"))),
        _ => return Err(ConfigError::new(path, "is no object")),
    };
    for (name, value) in members {
        if name == INCLUDE || name == "generation" || name == "hash" {
            return Err(ConfigError::new(path, format!("`{name}` is no member of a part")));
        }
        if whole.insert(name.clone(), value).is_some() {
            return Err(ConfigError::new(path, format!("`{name}` is given twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{check_hash, parse};
    use crate::files::{read_with_parts as read, read_with_parts_if_present};
    use serde::Deserialize;
    use serde_json::json;
    use std::path::Path;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Document {
        hash: String,
        a: u8,
        b: Vec<u8>,
    }

    fn named(part: &Value) -> String {
        format!("part-{}.json", hash_digits(&value_hash(part.clone())).unwrap())
    }

    fn document(parts: &[&Value]) -> String {
        let hashes: Vec<_> = parts.iter().map(|part| value_hash((*part).clone())).collect();
        let mut own = json!({"a": 1, "include": hashes});
        own["hash"] = json!(value_hash(own.clone()));
        own.to_string()
    }

    #[test]
    fn a_document_is_read_with_its_parts_and_checked_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let part = json!({"b": [2, 3]});
        let path = folder.path().join("edge1.json");
        let text = document(&[&part]);
        std::fs::write(&path, &text).unwrap();
        std::fs::write(folder.path().join(named(&part)), part.to_string()).unwrap();
        let bundle = read(&path).unwrap();
        let parsed: Document = parse(&bundle).unwrap();
        assert_eq!((parsed.a, &parsed.b), (1, &vec![2, 3]));
        assert_eq!(check_hash(&bundle, &parsed.hash), Ok(()));
        assert_eq!(
            parsed.hash,
            value_hash(serde_json::from_str(&text).unwrap()),
            "the hash is that of the file"
        );

        // A part with another content than its name says changes the hash.
        std::fs::write(folder.path().join(named(&part)), json!({"b": [2, 4]}).to_string()).unwrap();
        let bundle = read(&path).unwrap();
        let parsed: Document = parse(&bundle).unwrap();
        assert_eq!(check_hash(&bundle, &parsed.hash).unwrap_err().path, "hash");
    }

    #[test]
    fn missing_parts_and_double_members_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge1.json");
        std::fs::write(&path, document(&[&json!({"b": []})])).unwrap();
        let error = parse::<Document>(&read(&path).unwrap()).unwrap_err();
        assert_eq!(error.path, "include[0]");
        assert!(error.message.contains("is missing"), "{error}");
        let errors = [
            (json!({"hash": "", "a": 1, "include": [{"a": 2, "b": []}]}), "include[0]"),
            (json!({"hash": "", "a": 1, "include": [{"b": []}, {"b": []}]}), "include[1]"),
            (json!({"hash": "", "a": 1, "b": [], "include": [{"include": []}]}), "include[0]"),
            (json!({"hash": "", "a": 1, "b": [], "include": [1]}), "include[0]"),
            (json!({"hash": "", "a": 1, "b": [], "include": {}}), "include"),
            (json!({"hash": "", "a": 1, "b": [], "include": [{}, {}, {}, {}, {}]}), "include"),
            (json!({"hash": "", "include": [{"a": 300, "b": []}]}), "a"),
        ];
        for (text, expected) in errors {
            let error = parse::<Document>(text.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.path, expected, "{error}");
        }
    }

    #[test]
    fn texts_that_are_no_hash_name_no_file() {
        for text in
            ["sha256:../../etc/passwd", "sha256:", "", "sha256:ABC", &format!("sha256:{}", "g".repeat(64))]
        {
            assert_eq!(hash_digits(text), None, "{text}");
        }
        assert_eq!(read_with_parts_if_present(Path::new("/nonexistent/edge1.json")).unwrap(), None);
    }
}
