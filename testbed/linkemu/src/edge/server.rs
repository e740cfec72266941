//! The control socket: accepts connections, splits lines and writes answers, without interpreting them.

use crate::control::MAX_LINE;
use rustix::event::epoll::{self, EventData, EventFlags};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::{fs, mem};

/// Maximum number of concurrent connections; further connections are closed immediately.
const MAX_CLIENTS: usize = 16;
/// Maximum size of unsent answers to a client that does not read; a client that exceeds it is disconnected.
const MAX_OUTPUT: usize = 1 << 20;
/// Bytes per read from a client.
const READ_SIZE: usize = 4096;

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    ended: bool,
}

/// A listening control socket and its connections.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    first_token: u64,
    next_token: u64,
    clients: BTreeMap<u64, Client>,
}

/// Remove a stale socket file; fail if a process listens on it.
fn clear_stale(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            "another process listens there",
        )),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl Server {
    /// Listen at `path`. Events of the listener carry `first_token`, and events of clients carry greater tokens.
    pub fn listen(path: &Path, poll: &OwnedFd, first_token: u64) -> io::Result<Server> {
        clear_stale(path)?;
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        epoll::add(
            poll,
            &listener,
            EventData::new_u64(first_token),
            EventFlags::IN,
        )?;
        Ok(Server {
            listener,
            path: path.to_owned(),
            first_token,
            next_token: first_token + 1,
            clients: BTreeMap::new(),
        })
    }

    /// Handle an event of the listener or a client; `answer` is called with each complete line.
    pub fn on_event(&mut self, token: u64, poll: &OwnedFd, mut answer: impl FnMut(&str) -> Value) {
        if token == self.first_token {
            self.accept(poll);
            return;
        }
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let served = client.read().and_then(|()| {
            client.answer_lines(&mut answer)?;
            client.flush()
        });
        let keep = served.is_ok() && !(client.ended && client.output.is_empty());
        if !keep {
            self.clients.remove(&token);
            return;
        }
        let interest = match (client.ended, client.output.is_empty()) {
            (false, true) => EventFlags::IN,
            (false, false) => EventFlags::IN | EventFlags::OUT,
            (true, _) => EventFlags::OUT,
        };
        if epoll::modify(poll, &client.stream, EventData::new_u64(token), interest).is_err() {
            self.clients.remove(&token);
        }
    }

    fn accept(&mut self, poll: &OwnedFd) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        let token = self.next_token;
        let ready = stream.set_nonblocking(true).is_ok()
            && self.clients.len() < MAX_CLIENTS
            && epoll::add(poll, &stream, EventData::new_u64(token), EventFlags::IN).is_ok();
        if ready {
            self.next_token += 1;
            let client = Client {
                stream,
                input: Vec::new(),
                output: Vec::new(),
                ended: false,
            };
            self.clients.insert(token, client);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_SIZE];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn answer_lines(&mut self, answer: &mut impl FnMut(&str) -> Value) -> io::Result<()> {
        while let Some(end) = self.input.iter().position(|b| *b == b'\n') {
            let rest = self.input.split_off(end + 1);
            let line = mem::replace(&mut self.input, rest);
            let reply = answer(String::from_utf8_lossy(&line).trim());
            writeln!(self.output, "{reply}")?;
        }
        if self.input.len() > MAX_LINE || self.output.len() > MAX_OUTPUT {
            return Err(ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
