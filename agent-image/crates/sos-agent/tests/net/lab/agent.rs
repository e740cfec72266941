//! A running agent of a [`crate::lab::Lab`], for tests: its signals, its exit, its pages and metrics.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Child;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab::{PATIENCE, eventually};

/// A running agent, which is killed on drop.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
    /// Network namespace of the agent's HTTP server.
    pub(crate) metrics_ns: PathBuf,
}

impl Agent {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Stops the agent (SIGSTOP), and waits until each of its threads has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let has_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        eventually("the agent has stopped", || std::fs::read_dir(&tasks).unwrap().all(has_stopped));
    }

    /// Kills the agent, as the kernel would for lack of memory.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the agent has exited; returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the agent ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Value of a metric, named with its labels. `None` if the page or the line is missing.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let page = self.page()?;
        let line = page.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    }

    /// Waits until the agent is armed, kills its peer, and waits until the agent is disarmed.
    pub(crate) fn wait_armed_and_not(&self, peer: Self) {
        self.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
        drop(peer);
        self.wait_metric("sos_agent_armed_regions", |armed| armed == 0);
    }

    pub(crate) fn page(&self) -> Option<String> {
        self.get("/metrics")
    }

    /// Body of a page of the agent's HTTP server.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let ns = File::open(&self.metrics_ns).unwrap();
        let read = std::thread::spawn(move || -> std::io::Result<String> {
            setns(ns, CloneFlags::CLONE_NEWNET).unwrap();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9465));
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            let mut page = String::new();
            stream.read_to_string(&mut page)?;
            Ok(page.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
        });
        read.join().unwrap().ok()
    }

    pub(crate) fn wait_metric(&self, name: &str, holds: impl Fn(u64) -> bool) -> u64 {
        let mut value = None;
        eventually(&format!("{name} has the expected value"), || {
            value = self.metric(name);
            value.is_some_and(&holds)
        });
        value.unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- {}\n{log}", self.log.display());
        }
    }
}
