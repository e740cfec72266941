//! Socket options that no crate in use offers safely. Apart from `bpf`, the only unsafe code here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{SockFilter, SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::transport::path_info::{Pacing, PathInfo};

/// Sets SO_RCVLOWAT: a poll reports data only if at least this amount has arrived (socket(7)), but reports the end and errors immediately.
/// The kernel caps the amount at half of the receive buffer's limit, and always reports a full window.
fn set_receive_low_water(socket: &TcpStream, bytes: u32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Low water mark of a socket read at ticks: this many bytes accumulate only if the ticks do not keep up, and then the poll may report
/// data.
const UNPOLLED: u32 = 4 << 20;

/// Sets whether polls report arrived data, or only the end, errors and a full window.
pub(crate) fn set_polled(socket: &TcpStream, polled: bool) -> io::Result<()> {
    set_receive_low_water(socket, if polled { 1 } else { UNPOLLED })
}

/// Reads at most `most` available bytes into `buffer`, which must have free space. 0 = the end. Bypasses the runtime, which does not know of
/// data below the low water mark.
pub(crate) fn receive_now(socket: &TcpStream, buffer: &mut BytesMut, most: usize) -> io::Result<usize> {
    let free = buffer.spare_capacity_mut();
    let most = most.min(free.len());
    let read = SockRef::from(socket).recv(&mut free[..most])?;
    // SAFETY: `recv` has written `read` bytes at the beginning of the free space.
    unsafe { buffer.set_len(buffer.len() + read) };
    Ok(read)
}

fn set_int(socket: &impl AsFd, level: libc::c_int, name: libc::c_int, value: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    let (value, len) = ((&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and `value` points to `len` bytes.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the initial window, in `bytes`, of a socket that is neither connected nor listening. Without this call, the window would grow from
/// a default for LANs. A temporary low water mark enlarges the buffer (`tcp_set_rcvlowat`): after SO_RCVBUF, the kernel would no longer
/// tune the window.
///
/// # Errors
/// Error of the kernel.
pub fn set_first_window(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1)?;
    // The low water mark has also limited the window; with 0, only the buffer limits it.
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 0)
}

/// Limits the window that a socket offers, in place of the kernel's tuning. Sets the receive buffer (SO_RCVBUF, half of which the kernel
/// uses for itself), because the kernel resets a limit on the window alone when it learns the segment size (`tcp_measure_rcv_mss`). Also
/// sets TCP_WINDOW_CLAMP, without which a larger buffer does not enlarge the window. Exceeding net.core.rmem_max needs NET_ADMIN.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn set_window(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// Bytes of a socket in flight or unsent (SIOCOUTQ, tcp(7)); its FIN counts as one byte.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn unacknowledged(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the kernel writes one int to `bytes`.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(u64::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Filter of a host's segments (SO_ATTACH_FILTER, socket(7)): before TCP receives them, the kernel drops the segments that do not pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    /// All segments pass.
    #[default]
    Open,
    /// Segments with data or a change of state pass: keepalive probes and other bare acknowledgements are dropped.
    NoProbes,
    /// Only resets pass.
    Closed,
}

/// Bits of a TCP header's flags.
const RST: u32 = 0x04;
const FIN_SYN_RST: u32 = 0x07;
const FLAGS_AT: u32 = 13;
const HEADER_LEN_AT: u32 = 12;

/// Classic BPF program (linux/filter.h) over a segment from its TCP header on; returns the length to keep.
fn program(gate: Gate) -> Vec<SockFilter> {
    let instruction = |code: u32, k: u32| SockFilter::new(code as u16, 0, 0, k);
    let load_byte = |at| instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at);
    let jump = |code: u32, k: u32, yes: u8, no: u8| {
        SockFilter::new((libc::BPF_JMP | code | libc::BPF_K) as u16, yes, no, k)
    };
    let keep = |bytes| instruction(libc::BPF_RET | libc::BPF_K, bytes);
    match gate {
        Gate::Open => vec![keep(u32::MAX)],
        Gate::Closed => vec![load_byte(FLAGS_AT), jump(libc::BPF_JSET, RST, 0, 1), keep(u32::MAX), keep(0)],
        Gate::NoProbes => vec![
            load_byte(FLAGS_AT),
            jump(libc::BPF_JSET, FIN_SYN_RST, 7, 0),
            load_byte(HEADER_LEN_AT),
            instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 4),
            instruction(libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K, 2),
            instruction(libc::BPF_MISC | libc::BPF_TAX, 0),
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0),
            instruction(libc::BPF_ALU | libc::BPF_SUB | libc::BPF_X, 0),
            // A segment longer than its header contains data.
            jump(libc::BPF_JGT, 0, 0, 1),
            keep(u32::MAX),
            keep(0),
        ],
    }
}

/// Filters a host's segments by the gate.
///
/// # Errors
/// Error of the kernel; then all segments pass.
pub(crate) fn set_gate(socket: &impl AsFd, gate: Gate) -> io::Result<()> {
    let fd = socket.as_fd();
    let socket = SockRef::from(&fd);
    if gate == Gate::Open { socket.detach_filter() } else { socket.attach_filter(&program(gate)) }
}

/// Attaches an eBPF filter, by its descriptor, instead of the socket's filter (SO_ATTACH_BPF, socket(7)).
///
/// # Errors
/// Error of the kernel.
pub(crate) fn attach_filter(socket: &impl AsFd, program: i32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, u32::try_from(program).map_err(io::Error::other)?)
}

/// The socket's cookie, unique while this kernel runs (SO_COOKIE, socket(7)).
///
/// # Errors
/// Error of the kernel.
pub(crate) fn cookie(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes = [0; size_of::<u64>()];
    get_bytes(socket, libc::SOL_SOCKET, libc::SO_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Makes accepted connections keep the TTL of their handshake (IP_RECVTTL, ip(7)).
///
/// # Errors
/// Error of the kernel.
pub(crate) fn set_receive_ttl(socket: &impl AsFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)
}

/// IP header fields of the segment that completed a connection's handshake, as type and value (IP_PKTOPTIONS: `do_ip_getsockopt`,
/// net/ipv4/ip_sockglue.c): control messages of an int each.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn handshake_options(socket: &impl AsFd) -> io::Result<Vec<(libc::c_int, u8)>> {
    const LEN: usize = size_of::<usize>();
    const HEADER: usize = LEN + 2 * size_of::<libc::c_int>();
    // At most three control messages.
    let mut bytes = [0; 128];
    let len = get_bytes(socket, libc::IPPROTO_IP, libc::IP_PKTOPTIONS, &mut bytes)?;
    let (mut options, mut at) = (Vec::new(), 0);
    let int = |at: usize| Some(libc::c_int::from_ne_bytes(bytes[..len].get(at..at + 4)?.try_into().ok()?));
    while let (Some(kind), Some(value)) = (int(at + LEN + 4), int(at + HEADER)) {
        let said = usize::from_ne_bytes(bytes[at..at + LEN].try_into().expect("as long as it is"));
        if said < HEADER {
            break;
        }
        options.push((kind, u8::try_from(value & 0xff).unwrap_or(0)));
        at += said.next_multiple_of(LEN);
    }
    Ok(options)
}

fn get_bytes(socket: &impl AsFd, level: libc::c_int, name: libc::c_int, to: &mut [u8]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(to.len()).unwrap_or(0);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the kernel writes at most `len` bytes to `to`.
    let result = unsafe { libc::getsockopt(fd, level, name, to.as_mut_ptr().cast(), &raw mut len) };
    if result == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

/// Total number of segments dropped at a socket (SO_MEMINFO, linux/sock_diag.h).
///
/// # Errors
/// Error of the kernel.
pub(crate) fn dropped(socket: &impl AsFd) -> io::Result<u32> {
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0u32; SK_MEMINFO_DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the kernel writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(info[SK_MEMINFO_DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel probe an idle host every second. The first probe is sent immediately, because the keepalive timer of an idle connection
/// has then already expired. Unanswered probes end the connection only after more than two minutes.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn probe_at_once(socket: &impl AsFd) -> io::Result<()> {
    const MOST_PROBES: u32 = 127;
    let second = Duration::from_secs(1);
    set_keepalive(socket, second, second, MOST_PROBES)
}

/// Sets the times at which the kernel probes an idle host by itself.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn set_keepalive(
    socket: &impl AsFd,
    idle: Duration,
    interval: Duration,
    probes: u32,
) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_interval(interval).with_retries(probes).with_time(idle);
    SockRef::from(&socket.as_fd()).set_tcp_keepalive(&keepalive)
}

/// The kernel's statistics of a host leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LegInfo {
    /// Some data is unacknowledged.
    pub(crate) outstanding: bool,
    /// Consecutive retransmissions or window probes without an answer.
    pub(crate) unanswered: u8,
    /// Time since the host last sent data or an acknowledgement.
    pub(crate) quiet: Duration,
    /// Time since data was last sent in either direction.
    pub(crate) idle: Duration,
    /// Segments received from the host, segments with data among them, and bytes acknowledged by the host; all wrap.
    pub(crate) segments: u32,
    pub(crate) data_segments: u32,
    pub(crate) acknowledged: u32,
    /// Maximum bytes of a segment that the host may send.
    pub(crate) segment: u32,
}

impl LegInfo {
    /// True if the host has sent segments since `last`, but neither data nor an acknowledgement of data.
    pub(crate) fn is_probe_since(&self, last: &Self) -> bool {
        self.segments != last.segments
            && (self.data_segments, self.acknowledged) == (last.data_segments, last.acknowledged)
    }
}

/// Reads the kernel's statistics of a host leg.
///
/// # Errors
/// Error of the kernel; `Unsupported` if its answer is too short.
pub(crate) fn leg_info(socket: &impl AsFd) -> io::Result<LegInfo> {
    let info = tcp_info(socket)?;
    let field = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let millis = |at: usize| Duration::from_millis(field(at).into());
    let (data_sent, data_received, acknowledgement) = (millis(44), millis(52), millis(56));
    Ok(LegInfo {
        outstanding: field(24) > 0 || field(144) > 0,
        unanswered: info[2].max(info[3]),
        quiet: data_received.min(acknowledgement),
        idle: data_sent.min(data_received),
        segments: field(140),
        data_segments: field(152),
        acknowledged: field(if cfg!(target_endian = "little") { 120 } else { 124 }),
        segment: field(84),
    })
}

/// TCP_RTO_MAX_MS (linux/tcp.h), since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Limits the retransmission timeout.
///
/// # Errors
/// Error of the kernel; unknown before Linux 6.15.
pub fn set_retransmit_max(socket: &impl AsFd, max: Duration) -> io::Result<()> {
    let ms = libc::c_int::try_from(max.as_millis()).unwrap_or(libc::c_int::MAX);
    let (value, len) = ((&raw const ms).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and `value` points to `len` bytes.
    let result = unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, value, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Limits a socket's sending rate (SO_MAX_PACING_RATE, socket(7)). Any limit makes the kernel pace over the round trip for as long as the socket
/// exists (`sk_setsockopt`, net/core/sock.c); a limit that no path reaches gives pacing alone.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn set_pacing(socket: &impl AsFd, pacing: Pacing) -> io::Result<()> {
    let rate = match pacing {
        Pacing::Bursts => u64::MAX,
        Pacing::Spread => u64::MAX - 1,
        Pacing::AtMost(bytes_per_second) => bytes_per_second,
    };
    let (value, len) = ((&raw const rate).cast(), size_of::<u64>() as libc::socklen_t);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and `value` points to `len` bytes.
    let result = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Length of the part of `struct tcp_info` (linux/tcp.h) that is read; present since Linux 4.18.
const TCP_INFO_LEN: usize = 196;

/// States of a connection whose peer has acknowledged everything, including the FIN (linux/tcp_states.h): FIN_WAIT2, TIME_WAIT, CLOSE.
const TAKEN: [u8; 3] = [5, 6, 7];

/// True if the peer of a connection that was shut down has acknowledged everything, or never will. A host whose kernel has everything needs
/// nothing more from this agent.
pub(crate) fn is_taken(socket: &impl AsFd) -> bool {
    tcp_info(socket).map_or(true, |info| TAKEN.contains(&info[0]))
}

/// TCP_INFINITE_SSTHRESH (net/tcp.h). bbr sets a threshold when it has found the rate (`bbr_check_drain`, net/ipv4/tcp_bbr.c), but never reads
/// the threshold: its window may later fall below it.
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// Reads the kernel's path statistics of a stream.
///
/// # Errors
/// Error of the kernel; `Unsupported` if its answer is too short.
pub(crate) fn path_info(socket: &impl AsFd) -> io::Result<PathInfo> {
    Ok(parse(&tcp_info(socket)?))
}

fn parse(info: &[u8; TCP_INFO_LEN]) -> PathInfo {
    let field = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let micros = |at: usize| Duration::from_micros(field(at).into());
    let acknowledged = u64::from(field(120)) | u64::from(field(124)) << 32;
    PathInfo {
        rtt: micros(68),
        min_rtt: micros(148),
        segments: field(156),
        retransmitted: field(100),
        window: u64::from(field(80)) * u64::from(field(16)),
        slow_start: field(80) < field(76),
        startup: field(76) == NO_THRESHOLD,
        unsent: field(144),
        outstanding: field(24),
        in_flight: u64::from(field(24)) * u64::from(field(16)),
        delivered: field(192),
        mss: field(16),
        acknowledged: if cfg!(target_endian = "little") {
            acknowledged
        } else {
            acknowledged.rotate_left(32)
        },
    }
}

fn tcp_info(socket: &impl AsFd) -> io::Result<[u8; TCP_INFO_LEN]> {
    let mut info = [0u8; TCP_INFO_LEN];
    let mut len = TCP_INFO_LEN as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `socket` lives, and the kernel writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < TCP_INFO_LEN {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn below_the_low_water_mark_data_is_readable_but_not_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let far = listener.accept().await.unwrap().0;
        // The runtime takes a new socket for readable until a read finds no data.
        assert_eq!(far.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        set_receive_low_water(&far, 1000).unwrap();
        near.write_all(&[7; 999]).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(100), far.readable()).await.is_err());
        let mut buffer = BytesMut::with_capacity(2000);
        assert_eq!(receive_now(&far, &mut buffer, usize::MAX).unwrap(), 999);
        assert_eq!(buffer, vec![7; 999]);
        assert_eq!(receive_now(&far, &mut buffer, usize::MAX).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.write_all(&[7; 1000]).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), far.readable()).await.unwrap().unwrap();
    }

    #[test]
    fn slow_start_ends_when_the_window_reaches_the_threshold() {
        let search = |variance: u32, threshold: u32, window: u32| {
            let mut info = [0; TCP_INFO_LEN];
            for (at, value) in [(72, variance), (76, threshold), (80, window)] {
                info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
            (parse(&info).slow_start, parse(&info).startup)
        };
        assert_eq!(search(5, i32::MAX as u32, 100), (true, true));
        assert_eq!(search(9_000, 100, 100), (false, false), "for any variance of the round trip");
        assert_eq!(search(5, 1_000, 100), (true, false), "a threshold has been set");
    }

    #[tokio::test]
    async fn the_kernel_reports_path_statistics() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut far = listener.accept().await.unwrap().0;
        let before = path_info(&near).unwrap();
        near.write_all(&[7; 1000]).await.unwrap();
        far.read_exact(&mut [0; 1000]).await.unwrap();
        far.write_all(&[7]).await.unwrap();
        near.read_exact(&mut [0]).await.unwrap();
        let after = path_info(&near).unwrap();
        assert_eq!((after.segments - before.segments, after.retransmitted), (1, 0));
        assert_eq!((after.acknowledged - before.acknowledged, after.outstanding, after.unsent), (1000, 0, 0));
        assert!(after.window > 1000, "{after:?}");
        assert!(after.min_rtt > Duration::ZERO && after.min_rtt <= after.rtt * 2, "{after:?}");
    }
}
