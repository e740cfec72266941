//! Compression of blocks (spec/frame.md): adaptive, because it must not slow a session down.
//!
//! Order of calls: the driver passes a Data frame to [`compress::Compression`], which decides whether to call [`codec`]; the receiving half
//! expands the block by [`codec`].
//!
//! | module | contains |
//! |---|---|
//! | [`compress`] | the decision, and its measurements |
//! | [`codec`] | zstd |

pub mod codec;
pub mod compress;
