//! Frames as a kernel with segmentation offload passes them, and the packets in them. Pure.
//!
//! Order of calls: a port gives the [`vnet`] header and the bytes of a received frame to [`frame`], which divides the frame into wire packets.
//! [`delivery`] builds super-frames from due packets, and corrects checksums by [`checksum`].
//!
//! | module | contains |
//! |---|---|
//! | [`frame`] | frames, and the packets in them |
//! | [`vnet`] | virtio-net headers of frames |
//! | [`checksum`] | the Internet checksum |
//! | [`delivery`] | runs of packets as frames |

pub mod checksum;
pub mod delivery;
pub mod frame;
pub mod vnet;
