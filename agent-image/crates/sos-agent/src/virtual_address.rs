//! The virtual address of a site whose nodes share the address that hosts use as gateway (docs/adr/0068).
//!
//! A program of the user, such as keepalived, assigns the address to one of the nodes. This agent only follows: it accepts sessions while
//! its node has the address. Packets of hosts, and so replies of servers, reach only this node.
//!
//! Pure; edge: [`watch`] observes the addresses, and [`follow`] carries the decisions out.

pub mod follow;
pub mod watch;

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// State of an agent, named after the states of a virtual router (RFC 9568, section 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The node has the address, or the site has none.
    Active,
    /// Another node has the address, or none has it.
    Backup,
}

impl State {
    /// Word for `/status`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Active => "Active",
            Self::Backup => "Backup",
        }
    }
}

/// Action after an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing has changed.
    None,
    /// Accept sessions.
    Accept,
    /// Accept no sessions, and reset the running ones: packets of their hosts arrive at another node, which knows nothing of them.
    Reset,
}

/// Action after the node's addresses have been read: `has_address`, or `None` if reading failed. Without knowledge, the state is kept, since a
/// wrong change would reset sessions. A session that began while the address was leaving is reset at the next observation.
#[must_use]
pub fn decide(state: State, has_address: Option<bool>, sessions: u64) -> Action {
    match (state, has_address) {
        (State::Backup, Some(true)) => Action::Accept,
        (State::Active, Some(false)) => Action::Reset,
        (State::Backup, _) if sessions > 0 => Action::Reset,
        (State::Backup, _) | (State::Active, _) => Action::None,
    }
}

/// State of this agent, which all tasks read.
#[derive(Debug, Default)]
pub struct VirtualAddress {
    backup: AtomicBool,
    /// Wakes the arming task when the node has received the address.
    pub gained: Notify,
}

impl VirtualAddress {
    /// A state before the first observation. An agent that follows an address is a backup until it has seen the address.
    #[must_use]
    pub fn new(follows: bool) -> Self {
        Self { backup: AtomicBool::new(follows), gained: Notify::new() }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> State {
        if self.is_backup() { State::Backup } else { State::Active }
    }

    /// True while the agent accepts no sessions because another node may have the address.
    #[must_use]
    pub fn is_backup(&self) -> bool {
        self.backup.load(Ordering::Acquire)
    }

    fn set(&self, state: State) {
        self.backup.store(state == State::Backup, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_follows_the_address() {
        assert_eq!(decide(State::Backup, Some(true), 0), Action::Accept);
        assert_eq!(decide(State::Active, Some(true), 7), Action::None);
        assert_eq!(decide(State::Active, Some(false), 0), Action::Reset);
        assert_eq!(decide(State::Backup, Some(false), 0), Action::None);
    }

    #[test]
    fn a_backup_keeps_no_session() {
        assert_eq!(decide(State::Backup, Some(false), 1), Action::Reset);
        assert_eq!(decide(State::Backup, None, 1), Action::Reset);
        assert_eq!(decide(State::Backup, Some(true), 1), Action::Accept, "the hosts' packets arrive again");
    }

    #[test]
    fn an_unreadable_address_changes_nothing() {
        assert_eq!(decide(State::Active, None, 1), Action::None);
        assert_eq!(decide(State::Backup, None, 0), Action::None);
    }

    #[test]
    fn an_agent_that_follows_an_address_starts_as_backup() {
        assert_eq!(VirtualAddress::new(false).state().word(), "Active");
        let follower = VirtualAddress::new(true);
        assert_eq!(follower.state().word(), "Backup");
        follower.set(State::Active);
        assert!(!follower.is_backup());
    }
}
