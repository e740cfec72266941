//! Bytes and types of every message of SOS.
#![forbid(unsafe_code)]
