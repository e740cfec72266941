//! `serve`: the server of transfers and of `mtu`.

use std::io::{Error, ErrorKind, Read as _, Write as _, stdin, stdout};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::mtu;
use crate::transfer::STALL;
use crate::transfer::heard::Heard;
use crate::transfer::pattern::Pattern;
use crate::transfer::wire::{self, Direction};

/// Maximum number of concurrent transfers; further connections are closed immediately.
const MOST_TRANSFERS: usize = 16;

/// Pause after a failed accept.
const AFTER_AN_ERROR: Duration = Duration::from_millis(100);

/// The listening ports: the one line of output.
#[derive(Debug, Serialize)]
pub struct Ports {
    /// Port from the ranges of `--through`; null without a range or a free port.
    pub through: Option<u16>,
    /// Port from the ranges of `--plain`; null without a range or a free port.
    pub plain: Option<u16>,
}

/// Listen, print the ports, and serve until standard input ends or the time limit is reached.
///
/// # Errors
/// No port of either kind is free, or standard output is closed.
pub fn serve(
    address: Ipv4Addr,
    through: &[RangeInclusive<u16>],
    plain: &[RangeInclusive<u16>],
    seconds: u16,
) -> std::io::Result<()> {
    let through = first_free(address, through, TcpListener::bind);
    let plain = first_free(address, plain, |at| Ok((TcpListener::bind(at)?, mtu::socket(at)?)));
    let (pattern, open) = (Arc::new(Pattern::default()), Arc::new(AtomicUsize::new(0)));
    let ports =
        Ports { through: through.as_ref().map(|found| found.0), plain: plain.as_ref().map(|found| found.0) };
    if ports.through.is_none() && ports.plain.is_none() {
        return Err(Error::new(ErrorKind::AddrInUse, format!("no port of {address} is free")));
    }
    for listener in through.into_iter().map(|found| found.1) {
        accept(listener, &pattern, &open);
    }
    for (listener, socket) in plain.into_iter().map(|found| found.1) {
        accept(listener, &pattern, &open);
        echo(socket);
    }
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, &ports)?;
    out.write_all(b"\n")?;
    out.flush()?;
    wait(Duration::from_secs(seconds.into()));
    Ok(())
}

fn first_free<T>(
    address: Ipv4Addr,
    ranges: &[RangeInclusive<u16>],
    bind: impl Fn(SocketAddrV4) -> std::io::Result<T>,
) -> Option<(u16, T)> {
    let ports = ranges.iter().cloned().flatten();
    ports.filter_map(|port| Some((port, bind(SocketAddrV4::new(address, port)).ok()?))).next()
}

/// Wait until standard input ends because the parent process has exited or closed it, for `time` at most.
fn wait(time: Duration) {
    let (tell, told) = mpsc::channel::<()>();
    thread::spawn(move || {
        let mut nothing = [0; 64];
        while matches!(stdin().read(&mut nothing), Ok(1..)) {}
        drop(tell);
    });
    let _ = told.recv_timeout(time);
}

fn accept(listener: TcpListener, pattern: &Arc<Pattern>, open: &Arc<AtomicUsize>) {
    let (pattern, open) = (Arc::clone(pattern), Arc::clone(open));
    thread::spawn(move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(AFTER_AN_ERROR); // a temporary error, such as no free descriptor: retry after a pause
                continue;
            };
            if open.fetch_add(1, Ordering::Relaxed) >= MOST_TRANSFERS {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (pattern, open) = (Arc::clone(&pattern), Arc::clone(&open));
            thread::spawn(move || {
                // ignore errors: the client reports them, since it knows the transfer
                let _ = answer(&stream, &pattern);
                // shutdown also ends the thread of `Heard::listen`, which reads a clone of the stream
                let _ = stream.shutdown(Shutdown::Both);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

fn answer(mut stream: &TcpStream, pattern: &Pattern) -> std::io::Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    let (direction, seconds) = wire::asked(&mut stream)?;
    let client = stream.peer_addr()?.to_string();
    wire::tell_address(&mut stream, &client)?;
    let time = Duration::from_secs(seconds.into());
    if direction == Direction::Down {
        let heard = Heard::listen(stream.try_clone()?);
        wire::send(&mut stream, pattern, Instant::now() + time, &heard, STALL, &mut 0)?;
    } else {
        let mut other = stream;
        wire::receive(&mut stream, &mut other, pattern, time + wire::LONGEST_END, &mut 0)?;
    }
    // a client may keep the connection open after its transfer
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
    Ok(())
}

fn echo(socket: UdpSocket) {
    thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            mtu::answer(&socket, &packet[..length], from);
        }
    });
}
