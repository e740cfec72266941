//! The connection under a stream, as those see it who do not read or write it.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::SockRef;

use crate::quic;
use crate::sockopt::{PathInfo, path_info, set_pacing};

/// How fast a stream sends what congestion control lets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// As it comes. What was spread once stays so over TCP.
    Bursts,
    /// Spread over the round trip; over QUIC it always is.
    Spread,
    /// So many bytes a second at most, and spread.
    AtMost(u64),
}

/// The connection under a stream: what can be asked of it and what it can be told, whatever the transport. It keeps the connection from
/// closing.
pub struct Line {
    under: Under,
    carriers: Arc<AtomicUsize>,
}

enum Under {
    Tcp(OwnedFd),
    Quic(quic::Gauge),
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.under {
            Under::Tcp(_) => "TCP",
            Under::Quic(_) => "QUIC",
        };
        f.debug_tuple("Line").field(&transport).finish()
    }
}

impl Line {
    pub(crate) fn tcp(socket: OwnedFd) -> Self {
        Self::over(Under::Tcp(socket))
    }

    pub(crate) fn quic(gauge: quic::Gauge) -> Self {
        Self::over(Under::Quic(gauge))
    }

    fn over(under: Under) -> Self {
        Self { under, carriers: Arc::new(AtomicUsize::new(usize::MAX)) }
    }

    /// The same, and what [`Self::set_carriers`] says is told there.
    pub(crate) fn telling(self, carriers: &Arc<AtomicUsize>) -> Self {
        Self { carriers: Arc::clone(carriers), ..self }
    }

    /// What is known of the path.
    ///
    /// # Errors
    /// What the kernel says; that there is no connection any more.
    pub fn path_info(&self) -> io::Result<PathInfo> {
        match &self.under {
            Under::Tcp(socket) => path_info(socket),
            Under::Quic(gauge) => gauge.path_info(),
        }
    }

    /// Its congestion control models the rate of the path.
    pub(crate) fn is_modelled(&self) -> bool {
        match &self.under {
            Under::Tcp(socket) => {
                SockRef::from(socket).tcp_congestion().unwrap_or_default().starts_with(b"bbr")
            }
            Under::Quic(gauge) => gauge.is_modelled(),
        }
    }

    /// Sets congestion control by the kernel's name: `cubic`, `bbr` or `reno`.
    ///
    /// # Errors
    /// What the kernel says where it has none of that name; what is in force stays.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        match &self.under {
            Under::Tcp(socket) => SockRef::from(socket).set_tcp_congestion(name.as_bytes()),
            Under::Quic(gauge) => {
                gauge.set_congestion(name);
                Ok(())
            }
        }
    }

    /// Says how fast it sends.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Bounds what it holds unsent, in bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_unsent(&self, bytes: u32) -> io::Result<()> {
        match &self.under {
            Under::Tcp(socket) => SockRef::from(socket).set_tcp_notsent_lowat(bytes),
            Under::Quic(gauge) => {
                gauge.set_unsent(bytes);
                Ok(())
            }
        }
    }

    /// Says how many streams over the same path bulk sessions use at most.
    pub fn set_carriers(&self, most: usize) {
        self.carriers.store(most, Ordering::Relaxed);
    }

    /// Ends the connection at once, as if it had failed.
    pub fn cut(&self) {
        match &self.under {
            Under::Tcp(socket) => drop(SockRef::from(socket).shutdown(Shutdown::Both)),
            Under::Quic(gauge) => gauge.cut(),
        }
    }
}
