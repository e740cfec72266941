//! DSCP and TTL of the hosts' packets (frame.md section 8).

use sos_wire::Payload;

use super::Driver;
use crate::session::host::Host;

impl Driver {
    /// Assigns the marks of the host's last segment to its bytes from now on.
    pub(super) fn note_marks(&mut self) {
        if let Some(marks) = self.host.as_ref().and_then(Host::marks) {
            self.session.handle_local_marks(marks);
            self.liveness.note_marks(marks);
        }
    }

    /// Handles bytes from the host; no bytes mean that the host has ended its direction.
    pub(super) fn handle_read(&mut self, bytes: Payload) {
        self.note_marks();
        if bytes.is_empty() {
            self.session.handle_local_eof();
        } else {
            self.session.handle_local_data(bytes);
        }
    }

    /// Sets the marks of the next bytes to the host.
    pub(super) fn fit_marks(&mut self) {
        if let Some(host) = &mut self.host
            && let Some(marks) = self.session.poll_marks()
        {
            host.set_marks(marks);
        }
    }
}
