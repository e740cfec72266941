//! DSCP and TTL of the hosts' packets (frame.md section 8).

use sos_wire::Payload;

use super::Driver;
use crate::host::Host;

impl Driver {
    /// Bytes that the host sends from now on have the marks of its last segment.
    pub(super) fn note_marks(&mut self) {
        if let Some(marks) = self.host.as_ref().and_then(Host::marks) {
            self.session.handle_local_marks(marks);
            self.liveness.note_marks(marks);
        }
    }

    /// The host says something, or with nothing that it says no more.
    pub(super) fn handle_read(&mut self, bytes: Payload) {
        self.note_marks();
        if bytes.is_empty() {
            self.session.handle_local_eof();
        } else {
            self.session.handle_local_data(bytes);
        }
    }

    /// Gives the host's connection the marks of what it is given next.
    pub(super) fn fit_marks(&mut self) {
        if let Some(host) = &mut self.host
            && let Some(marks) = self.session.poll_marks()
        {
            host.set_marks(marks);
        }
    }
}
