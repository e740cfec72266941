//! Network namespaces of pods, found by the pods' addresses. For each task, a new thread enters the namespace and ends afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use tracing::{debug, warn};

/// Maximum number of files examined in the folder of namespaces: several times the number of pods that a kubelet runs on one node.
const MAX_NAMESPACES: usize = 4_096;

/// An open network namespace. The kernel keeps the namespace while the file is open.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Opens a namespace by its file, for example `/run/netns/cni-1`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Calls `act` on a thread inside the namespace; sockets opened and programs started there belong to the namespace. Needs SYS_ADMIN.
    ///
    /// # Errors
    /// The file is not a network namespace, or the namespace cannot be entered.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let entered = std::thread::Builder::new().spawn_scoped(scope, || {
                setns(&self.0, CloneFlags::CLONE_NEWNET)?;
                Ok(act())
            })?;
            entered.join().unwrap_or_else(|_| Err(io::Error::other("a thread inside a namespace panicked")))
        })
    }
}

/// Namespaces of a node by address. Files are identified by inode, so that a namespace with several files is entered only once.
#[derive(Debug)]
pub struct Scanner {
    folder: PathBuf,
    known: BTreeMap<u64, (PathBuf, BTreeSet<Ipv4Addr>)>,
    scans: u32,
}

/// File of a network namespace, with its inode, because a container runtime may reuse a file name for another namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceFile {
    /// Path.
    pub path: PathBuf,
    inode: u64,
}

/// Number of scans after which all addresses are read again.
const RESCAN: u32 = 30;

impl Scanner {
    /// Scanner of a folder whose files are network namespaces.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, known: BTreeMap::new(), scans: 0 }
    }

    /// Rereads the folder. Returns the file of each address. An address that several namespaces have is ambiguous, and is left out.
    pub fn scan(&mut self) -> BTreeMap<Ipv4Addr, NamespaceFile> {
        self.scans = (self.scans + 1) % RESCAN;
        if self.scans == 0 {
            self.known.clear();
        }
        let mut present = BTreeMap::new();
        match std::fs::read_dir(&self.folder) {
            Ok(entries) => {
                for path in entries.flatten().map(|entry| entry.path()).take(MAX_NAMESPACES) {
                    if let Ok(data) = std::fs::metadata(&path) {
                        present.insert(data.ino(), path);
                    }
                }
            }
            Err(error) => {
                warn!(folder = %self.folder.display(), %error, "the folder of network namespaces cannot be read");
            }
        }
        self.known.retain(|inode, _| present.contains_key(inode));
        for (inode, path) in present {
            // Read the addresses again if there were none, because a new namespace has no address until the network plugin has run; and if the
            // path has changed, because the kernel reuses inode numbers.
            let is_new = |(known, addresses): &(PathBuf, BTreeSet<_>)| addresses.is_empty() || *known != path;
            if self.known.get(&inode).is_none_or(is_new) {
                let found = addresses(&path);
                self.known.insert(inode, (path, found));
            }
        }
        unique(&self.known)
    }
}

/// Addresses that belong to exactly one namespace, with the file of this namespace.
fn unique(known: &BTreeMap<u64, (PathBuf, BTreeSet<Ipv4Addr>)>) -> BTreeMap<Ipv4Addr, NamespaceFile> {
    let mut files: BTreeMap<Ipv4Addr, Option<NamespaceFile>> = BTreeMap::new();
    for (inode, (path, addresses)) in known {
        for address in addresses {
            let file = || Some(NamespaceFile { path: path.clone(), inode: *inode });
            files.entry(*address).and_modify(|file| *file = None).or_insert_with(file);
        }
    }
    files.into_iter().filter_map(|(address, file)| Some((address, file?))).collect()
}

/// IPv4 addresses of a namespace, without 127.0.0.0/8.
fn addresses(path: &Path) -> BTreeSet<Ipv4Addr> {
    let read = || -> io::Result<BTreeSet<Ipv4Addr>> {
        let listed = nix::ifaddrs::getifaddrs()?;
        let of_interface = listed.filter_map(|entry| Some(entry.address?.as_sockaddr_in()?.ip()));
        Ok(of_interface.filter(|address| !address.is_loopback()).collect())
    };
    Namespace::open(path).and_then(|namespace| namespace.inside(read)?).unwrap_or_else(|error| {
        debug!(path = %path.display(), %error, "addresses of a network namespace");
        BTreeSet::new()
    })
}

/// True for addresses of the current network namespace, including 127.0.0.0/8.
#[must_use]
pub fn is_own_address(address: Ipv4Addr) -> bool {
    let listed = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let mut addresses = listed.filter_map(|entry| Some(entry.address?.as_sockaddr_in()?.ip()));
    address.is_loopback() || addresses.any(|own| own == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_two_namespaces_belongs_to_none() {
        let address = |last| Ipv4Addr::new(10, 0, 0, last);
        let known = BTreeMap::from([
            (1, ("a".into(), BTreeSet::from([address(1), address(2)]))),
            (2, ("b".into(), BTreeSet::from([address(2), address(3)]))),
        ]);
        let found: Vec<_> =
            unique(&known).into_iter().map(|(address, file)| (address, file.path, file.inode)).collect();
        assert_eq!(found, [(address(1), "a".into(), 1), (address(3), "b".into(), 2)]);
    }

    #[test]
    fn files_that_are_not_namespaces_have_no_address() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(Scanner::new(folder.path().to_owned()).scan().is_empty());
        assert!(Scanner::new(folder.path().join("missing")).scan().is_empty());
    }
}
