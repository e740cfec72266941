//! Payload of a Data frame: bytes in memory, or bytes that a keeper holds elsewhere.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// Holder of bytes that are not in this process's memory. Code that knows the concrete type can take the bytes.
pub trait Keeper: Any + Debug + Send + Sync {}

/// A range of the bytes of a [`Keeper`].
#[derive(Debug, Clone)]
pub struct Kept {
    keeper: Arc<dyn Keeper>,
    range: Range<usize>,
}

/// Bytes of a direction. Cheap to clone and to cut: nothing is copied.
#[derive(Debug, Clone)]
pub enum Payload {
    /// In memory.
    Bytes(Bytes),
    /// Elsewhere.
    Kept(Kept),
}

impl Kept {
    /// All of the `len` bytes of a keeper.
    pub fn new(keeper: Arc<dyn Keeper>, len: usize) -> Self {
        Self { keeper, range: 0..len }
    }

    /// The keeper.
    pub fn keeper(&self) -> &dyn Keeper {
        &*self.keeper
    }

    /// Range within the keeper's bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.keeper, &other.keeper) && self.range == other.range
    }
}

impl Eq for Kept {}

impl Payload {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Kept(kept) => kept.range.len(),
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory.
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Kept(_) => None,
        }
    }

    /// A part of the payload.
    ///
    /// # Panics
    /// If `part` exceeds the payload.
    pub fn slice(&self, part: Range<usize>) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.slice(part)),
            Self::Kept(kept) => {
                assert!(
                    part.start <= part.end && part.end <= kept.range.len(),
                    "the part exceeds the payload"
                );
                let start = kept.range.start;
                let range = start + part.start..start + part.end;
                Self::Kept(Kept { keeper: Arc::clone(&kept.keeper), range })
            }
        }
    }

    /// Split off the first `at` bytes; the rest stays.
    ///
    /// # Panics
    /// If `at` exceeds the payload.
    pub fn split_to(&mut self, at: usize) -> Self {
        let front = self.slice(0..at);
        *self = self.slice(at..self.len());
        front
    }
}

/// Compare bytes in memory by content, and kept bytes by keeper and range. Bytes in memory never equal kept bytes.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(one), Self::Bytes(other)) => one == other,
            (Self::Kept(one), Self::Kept(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Payload {}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl FromIterator<u8> for Payload {
    fn from_iter<T: IntoIterator<Item = u8>>(bytes: T) -> Self {
        Self::Bytes(bytes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct EmptyKeeper;

    impl Keeper for EmptyKeeper {}

    #[test]
    fn parts_of_kept_bytes_are_ranges_of_the_same_keeper() {
        let mut rest = Payload::Kept(Kept::new(Arc::new(EmptyKeeper), 100));
        let front = rest.split_to(30);
        assert_eq!((front.len(), rest.len(), front.bytes()), (30, 70, None));
        let Payload::Kept(part) = rest.slice(10..20) else { panic!("still kept") };
        assert_eq!(part.range(), 40..50);
        assert_eq!(rest.slice(10..20), Payload::Kept(part));
        assert_ne!(
            front,
            Payload::Kept(Kept::new(Arc::new(EmptyKeeper), 30)),
            "the same range of a different keeper"
        );
        assert_ne!(front, Payload::from(vec![0; 30]));
    }

    #[test]
    #[should_panic(expected = "the part exceeds the payload")]
    fn slice_panics_beyond_the_payload() {
        let _ = Payload::Kept(Kept::new(Arc::new(EmptyKeeper), 100)).slice(90..101);
    }
}
