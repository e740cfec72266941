//! Splits a byte stream that arrives in pieces into frames.

use bytes::{Bytes, BytesMut};

use crate::error::WireError;
use crate::stream::frame::{Frame, HEADER_LEN, Header, MAX_PAYLOAD};
use crate::stream::payload::Payload;

/// Maximum size of a frame in bytes, and of the buffer that the decoder needs.
pub const MAX_FRAME: usize = HEADER_LEN + MAX_PAYLOAD;
/// Payloads up to this size are copied out: a slice would keep the whole read buffer alive for a few bytes.
const COPY_LIMIT: usize = 4096;
/// Minimum number of bytes that [`Decoder::take_part`] delivers as a separate frame.
const PART_MIN: usize = 16 << 10;

/// Takes whole frames from the front of a buffer that the caller fills.
///
/// The frames do not depend on the sizes of the reads. After an error the stream is broken: every further call returns the same error
/// (frame.md clause 13).
///
/// ```
/// use bytes::BytesMut;
/// use sos_wire::{Body, Decoder, Frame, SessionNumber};
///
/// let frame = Frame { session: SessionNumber(1), body: Body::Fin { offset: 7 } };
/// let (mut buffer, mut decoder) = (BytesMut::new(), Decoder::default());
/// frame.encode(&mut buffer);
/// assert_eq!(decoder.decode(&mut buffer), Ok(Some(frame)));
/// assert_eq!(decoder.decode(&mut buffer), Ok(None));
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    header: Option<Header>,
    broken: Option<WireError>,
}

impl Decoder {
    /// Take the next whole frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// The first defect in the bytes; the caller must close the stream.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, WireError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        self.take(buffer).inspect_err(|error| self.broken = Some(*error))
    }

    /// Number of bytes that the first frame still lacks if `buffered` bytes are in the buffer: a hint for the next read. At most
    /// [`MAX_FRAME`].
    pub fn missing(&self, buffered: usize) -> usize {
        self.header.map_or(HEADER_LEN, |header| header.payload_len).saturating_sub(buffered)
    }

    /// Take the received part of an incomplete Data frame as a separate Data frame; the next part continues at the end of this part.
    /// Callers use this if their buffer has no space for the rest. A session takes bytes by offset, so the parts need no copy to join them.
    /// Returns `None` if the part is empty, or so small that a copy is cheaper.
    pub fn take_part(&mut self, buffer: &mut BytesMut) -> Option<Frame> {
        if buffer.len() < PART_MIN { None } else { self.take_begun(buffer) }
    }

    /// Like [`Self::take_part`] for a part of any size, so that the caller can receive the rest outside the buffer.
    pub fn take_begun(&mut self, buffer: &mut BytesMut) -> Option<Frame> {
        let header = self.header.as_mut()?;
        let len = buffer.len();
        if len == 0 || len >= header.payload_len {
            return None;
        }
        let part = header.split_off(len)?;
        Some(part.carry(payload(buffer, len).into()))
    }

    /// Remaining payload bytes of the incomplete Data frame, inside and outside the buffer; 0 if no Data frame is incomplete.
    pub fn begun(&self) -> usize {
        self.header.and_then(|header| header.data_len()).unwrap_or(0)
    }

    /// Take the next bytes of the incomplete Data frame as a separate Data frame, like [`Self::take_part`]. The caller has received these
    /// bytes outside the buffer, while the buffer was empty.
    ///
    /// # Panics
    /// If `payload` is empty, or longer than [`Self::begun`].
    pub fn take_elsewhere(&mut self, payload: Payload) -> Option<Frame> {
        let header = self.header.as_mut()?;
        let (begun, len) = (header.data_len()?, payload.len());
        assert!((1..=begun).contains(&len), "{len} bytes of {begun}");
        let part = if len == begun { self.header.take() } else { header.split_off(len) };
        part.map(|part| part.carry(payload))
    }

    fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, WireError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = buffer.first_chunk::<HEADER_LEN>() else { return Ok(None) };
                let header = Header::decode(bytes)?;
                let _ = buffer.split_to(HEADER_LEN);
                *self.header.insert(header)
            }
        };
        if buffer.len() < header.payload_len {
            return Ok(None);
        }
        self.header = None;
        header.complete(payload(buffer, header.payload_len)).map(Some)
    }
}

fn payload(buffer: &mut BytesMut, len: usize) -> Bytes {
    let payload = buffer.split_to(len);
    if payload.len() <= COPY_LIMIT { Bytes::copy_from_slice(&payload) } else { payload.freeze() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, SessionNumber};

    /// A decoder inside a Data frame of `len` bytes at offset 7, with an empty buffer.
    fn begun(len: usize) -> (Decoder, BytesMut) {
        let frame =
            Frame { session: SessionNumber(1), body: Body::Data { offset: 7, payload: vec![7; len].into() } };
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        frame.encode_head(&mut buffer);
        assert_eq!(decoder.decode(&mut buffer), Ok(None));
        (decoder, buffer)
    }

    fn part(frame: Option<Frame>) -> (u64, usize) {
        match frame.unwrap().body {
            Body::Data { offset, payload } => (offset, payload.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rest_of_a_data_frame_may_be_received_outside_the_buffer() {
        let (mut decoder, mut buffer) = begun(100_000);
        buffer.extend_from_slice(&[7; 10]);
        assert_eq!(decoder.begun(), 100_000);
        assert_eq!(part(decoder.take_begun(&mut buffer)), (7, 10));
        assert_eq!((decoder.begun(), buffer.len(), decoder.take_begun(&mut buffer)), (99_990, 0, None));
        assert_eq!(part(decoder.take_elsewhere(vec![7; 90_000].into())), (17, 90_000));
        assert_eq!(part(decoder.take_elsewhere(vec![7; 9_990].into())), (90_017, 9_990));
        assert_eq!((decoder.begun(), decoder.take_elsewhere(vec![7].into())), (0, None));
        let fin = Frame { session: SessionNumber(1), body: Body::Fin { offset: 100_007 } };
        fin.encode(&mut buffer);
        assert_eq!(decoder.decode(&mut buffer), Ok(Some(fin)));
    }

    #[test]
    #[should_panic(expected = "2 bytes of 1")]
    fn take_elsewhere_panics_beyond_the_end_of_the_frame() {
        begun(1).0.take_elsewhere(vec![7; 2].into());
    }
}
