//! Control handle of a stream's transport: path statistics, congestion control and pacing, no I/O.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::SockRef;

use crate::transport::path_info::{Pacing, PathInfo};
use crate::transport::quic;
use crate::transport::sockopt::{path_info, set_pacing};

/// Control handle of a stream's transport, TCP or QUIC. It keeps the connection open.
pub struct TransportHandle {
    under: Under,
    parallelism: Arc<AtomicUsize>,
}

enum Under {
    Tcp(OwnedFd),
    Quic(quic::Gauge),
}

impl fmt::Debug for TransportHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.under {
            Under::Tcp(_) => "TCP",
            Under::Quic(_) => "QUIC",
        };
        f.debug_tuple("TransportHandle").field(&transport).finish()
    }
}

impl TransportHandle {
    pub(crate) fn tcp(socket: OwnedFd) -> Self {
        Self::over(Under::Tcp(socket))
    }

    pub(crate) fn quic(gauge: quic::Gauge) -> Self {
        Self::over(Under::Quic(gauge))
    }

    fn over(under: Under) -> Self {
        Self { under, parallelism: Arc::new(AtomicUsize::new(usize::MAX)) }
    }

    /// Makes [`Self::set_parallelism`] store its number in `parallelism`.
    pub(crate) fn telling(self, parallelism: &Arc<AtomicUsize>) -> Self {
        Self { parallelism: Arc::clone(parallelism), ..self }
    }

    /// Path statistics.
    ///
    /// # Errors
    /// Error of the kernel; `NotConnected`.
    pub fn path_info(&self) -> io::Result<PathInfo> {
        match &self.under {
            Under::Tcp(socket) => path_info(socket),
            Under::Quic(gauge) => gauge.path_info(),
        }
    }

    /// True if the congestion control is bbr.
    pub(crate) fn uses_bbr(&self) -> bool {
        match &self.under {
            Under::Tcp(socket) => {
                SockRef::from(socket).tcp_congestion().unwrap_or_default().starts_with(b"bbr")
            }
            Under::Quic(gauge) => gauge.uses_bbr(),
        }
    }

    /// Sets congestion control by the kernel's name: `cubic`, `bbr` or `reno`.
    ///
    /// # Errors
    /// Error of the kernel if it has no congestion control of that name; the current congestion control stays in force.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        match &self.under {
            Under::Tcp(socket) => SockRef::from(socket).set_tcp_congestion(name.as_bytes()),
            Under::Quic(gauge) => {
                gauge.set_congestion(name);
                Ok(())
            }
        }
    }

    /// Sets the pacing.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn set_pacing(&self, pacing: Pacing) -> io::Result<()> {
        match &self.under {
            Under::Tcp(socket) => set_pacing(socket, pacing),
            Under::Quic(gauge) => {
                gauge.set_pacing(match pacing {
                    Pacing::AtMost(bytes_per_second) => Some(bytes_per_second),
                    Pacing::Bursts | Pacing::Spread => None,
                });
                Ok(())
            }
        }
    }

    /// Limits the unsent bytes of the socket.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn set_unsent(&self, bytes: u32) -> io::Result<()> {
        match &self.under {
            Under::Tcp(socket) => SockRef::from(socket).set_tcp_notsent_lowat(bytes),
            Under::Quic(gauge) => {
                gauge.set_unsent(bytes);
                Ok(())
            }
        }
    }

    /// Sets the maximum number of the path's streams that carry bulk sessions.
    pub fn set_parallelism(&self, most: usize) {
        self.parallelism.store(most, Ordering::Relaxed);
    }

    /// Closes the connection immediately, as if it had failed.
    pub fn cut(&self) {
        match &self.under {
            Under::Tcp(socket) => drop(SockRef::from(socket).shutdown(Shutdown::Both)),
            Under::Quic(gauge) => gauge.cut(),
        }
    }
}
