//! Follows the site's virtual address: accepts sessions while the node has the address. Edge.

use std::net::Ipv4Addr;
use std::sync::Arc;

use sos_daemon::bugs::fence;
use tracing::info;

use crate::context::AgentContext;
use crate::virtual_address::watch::{Changes, has_address};
use crate::virtual_address::{Action, State, decide};

/// Follows an address of an interface, forever.
pub async fn follow(context: Arc<AgentContext>, interface: String, address: Ipv4Addr) {
    // Opened before the first observation, so that no change is missed between two observations.
    let changes = Changes::open();
    loop {
        fence(|| observe(&context, &interface, address));
        changes.wait().await;
    }
}

fn observe(context: &AgentContext, interface: &str, address: Ipv4Addr) {
    let sessions = context.tunnel().stats().sessions;
    match decide(context.virtual_address.state(), has_address(interface, address), sessions) {
        Action::None => {}
        Action::Accept => {
            info!(%address, "this node has the virtual address");
            context.virtual_address.set(State::Active);
            context.virtual_address.gained.notify_one();
        }
        Action::Reset => {
            info!(%address, sessions, "this node does not have the virtual address: sessions are reset");
            context.virtual_address.set(State::Backup);
            context.leave_hosts();
        }
    }
    context.metrics.backup.set(i64::from(context.virtual_address.is_backup()));
}
