//! Files of a daemon: its configuration, which may be mounted and change at any time, and files that it replaces.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::document::MAX_DOCUMENT_BYTES;
use crate::parts;

/// Path of a node's document: `path` itself, or `<node>.json` in it if `path` is a folder.
#[must_use]
pub fn document_path(path: &Path, node: &str) -> PathBuf {
    if path.is_dir() { path.join(format!("{node}.json")) } else { path.to_owned() }
}

/// Reads at most one byte more than the maximum size of a document, so that the parser refuses a file of any size.
///
/// # Errors
/// The file cannot be read.
pub fn read_document(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// As [`read_document`]; `None` if there is no such file.
///
/// # Errors
/// The file cannot be read.
pub fn read_document_if_present(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    match read_document(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a document with its parts, which are in the same folder ([`crate::parts`]).
///
/// # Errors
/// The document itself cannot be read.
pub fn read_with_parts(path: &Path) -> std::io::Result<Vec<u8>> {
    // A kubelet replaces all files of a mounted ConfigMap by one symbolic link: read document and parts behind the same target.
    let path = std::fs::canonicalize(path)?;
    let text = read_document(&path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let read = |name: &str| read_document_if_present(&folder.join(name)).ok().flatten();
    Ok(parts::fill(&text, read).unwrap_or(text))
}

/// As [`read_with_parts`]; `None` if there is no such document.
///
/// # Errors
/// The document itself cannot be read.
pub fn read_with_parts_if_present(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    match read_with_parts(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Access to a file that [`replace`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only the owner may read the file.
    Owner,
    /// All users may read the file.
    All,
}

/// Replaces a file by a rename: readers, and a start after a crash, see the old or the new content.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, content: &[u8], access: Access) -> std::io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".sos-").tempfile_in(folder)?;
    file.write_all(content)?;
    if access == Access::All {
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644))?;
    }
    // Without it, a power failure may leave an empty file under the final name.
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_holds_a_document_per_node() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(document_path(folder.path(), "edge1"), folder.path().join("edge1.json"));
        let file = folder.path().join("any");
        assert_eq!(document_path(&file, "edge1"), file);
    }

    #[test]
    fn a_file_of_any_size_is_read_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_document(&path).unwrap().len(), MAX_DOCUMENT_BYTES + 1);
        assert_eq!(read_document_if_present(&folder.path().join("missing")).unwrap(), None);
        assert!(read_document_if_present(folder.path()).is_err(), "a folder cannot be read");
    }

    #[test]
    fn a_replaced_file_has_the_new_content_and_access() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (content, access, mode) in [("old", Access::Owner, 0o600), ("new", Access::All, 0o644)] {
            replace(&path, content.as_bytes(), access).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
        assert!(replace(&folder.path().join("missing").join("file"), b"", Access::All).is_err());
    }
}
