//! What a session sends next.

use sos_wire::Body;

use super::{Opening, Session, State};
use crate::scheduler::{StreamId, StreamView};

impl Session {
    /// Control first: it is small, and acknowledgements keep the other direction moving.
    pub(super) fn transmit_running(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let control = self.transmit_opened(streams).or_else(|| self.transmit_ack(streams));
        if control.is_some() {
            return control;
        }
        let Some(len) = self.sender.next_len() else {
            if !streams.is_empty() {
                self.sender.note_stall();
            }
            return self.transmit_lone_open(streams);
        };
        let stream = self.scheduler.choose(streams, len)?;
        // Open goes first on every stream, so that data never meets an agent that has not heard of the session (frame.md clause 7).
        if let Some(open) = self.open_for(stream) {
            return Some((stream, open));
        }
        self.sender.next(stream).map(|body| (stream, body))
    }

    /// Open without data: the server may be the one to speak first.
    fn transmit_lone_open(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let Opening::Repeat { sent_on, .. } = &self.opening else { return None };
        if !sent_on.is_empty() {
            return None;
        }
        let stream = self.scheduler.choose(streams, 0)?;
        self.open_for(stream).map(|body| (stream, body))
    }

    fn open_for(&mut self, stream: StreamId) -> Option<Body> {
        let Opening::Repeat { open, sent_on } = &mut self.opening else { return None };
        let credit = self.receiver.limit();
        sent_on.insert(stream).then(|| Body::Open { credit, open: *open })
    }

    fn transmit_opened(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        if !matches!(self.opening, Opening::Announce) {
            return None;
        }
        let stream = least_queued(streams)?;
        self.opening = Opening::Done;
        Some((stream, Body::Opened { credit: self.receiver.limit() }))
    }

    fn transmit_ack(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        if !self.receiver.ack_is_due() {
            return None;
        }
        let stream = least_queued(streams)?;
        Some((stream, self.receiver.next_ack()))
    }

    pub(super) fn transmit_reset(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let State::Resetting { reason, told, .. } = &mut self.state else { return None };
        let stream = streams.iter().map(|s| s.id).find(|id| !told.contains(id))?;
        told.insert(stream);
        Some((stream, Body::Reset { reason: *reason }))
    }
}

fn least_queued(streams: &[StreamView]) -> Option<StreamId> {
    streams.iter().min_by_key(|s| s.queued).map(|s| s.id)
}
