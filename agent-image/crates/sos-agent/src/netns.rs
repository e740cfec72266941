//! Network set-up: applies [`crate::netns::plan`] and [`crate::netns::nft`]; the only module that changes the system's network
//! configuration.

pub mod namespace;
pub mod nf_tables;
pub mod nflog;
pub mod nft;
pub mod plan;
pub mod pod;
pub mod sock_diag;
pub mod sockets;
pub mod stream_routes;
pub mod tables;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use tracing::{debug, info};

use crate::cli::Attach;
use crate::documents::config::{AgentConfig, Bridge};
use crate::netns::plan::{Ip, Present, Sysctl};
use crate::policy::plain_traffic::{self, Seen};

/// Reason for a failed set-up of the network.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A command could not be started.
    #[error("cannot run {program}: {error} (are nftables and iproute2 installed?)")]
    Start {
        /// Program.
        program: &'static str,
        /// Error.
        error: std::io::Error,
    },
    /// A command failed.
    #[error("{command}: {message}")]
    Failed {
        /// The whole command.
        command: String,
        /// Its output.
        message: String,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// Operation.
        what: &'static str,
        /// Error.
        error: std::io::Error,
    },
    /// The configured interface does not exist.
    #[error(
        "interface {name} does not exist in this network namespace; --attach none needs one that is there already"
    )]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// The name of the outer end belongs to a device that the agent did not create.
    #[error("interface.hostName {name} is taken by {kind}")]
    NameTaken {
        /// Name.
        name: String,
        /// Kind of the device.
        kind: String,
    },
    /// A required kernel setting cannot be applied.
    #[error("/proc/sys/{path} is {found:?} and cannot be set to {wanted:?}: {error}")]
    Sysctl {
        /// Path below `/proc/sys`.
        path: String,
        /// Value found.
        found: String,
        /// Value needed.
        wanted: String,
        /// Reason.
        error: std::io::Error,
    },
}

/// Binds the metrics listener; called before [`attach_host`], so that the listener stays in the host's namespace. With attach `none`,
/// connections from hosts' addresses use the same namespace, so the listener shares its port with these connections.
///
/// # Errors
/// The address is in use, or is not an address of this machine.
pub fn bind_metrics(address: SocketAddr, attach: Attach) -> Result<std::net::TcpListener, NetError> {
    let failed = |error| NetError::System { what: "cannot listen on metricsAddress", error };
    let listener = match attach {
        Attach::Host => std::net::TcpListener::bind(address),
        Attach::None => sockets::shared_listener(address),
    };
    let listener = listener.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Moves this thread, and every thread started from it later, into a new network namespace that a veth pair connects to the current
/// namespace. The new namespace and both ends of the pair disappear with the last of these threads.
///
/// # Errors
/// Missing capabilities (`NET_ADMIN`, `SYS_ADMIN`) or an outer name in use by a device that is not a veth.
pub fn attach_host(bridge: Bridge<'_>) -> Result<(), NetError> {
    let system = |what| move |error: std::io::Error| NetError::System { what, error };
    let host =
        File::open("/proc/thread-self/ns/net").map_err(system("cannot open this network namespace"))?;
    free_outer_end(bridge)?;
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|e| system("cannot make a network namespace (SYS_ADMIN needed)")(e.into()))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
    run(&plan::veth_pair(bridge, &path))?;
    // The outer end is configured from a thread that stays in the host's namespace.
    let up = plan::outer_end_up(bridge);
    std::thread::scope(|scope| {
        let back = || -> Result<(), NetError> {
            setns(&host, CloneFlags::CLONE_NEWNET)
                .map_err(|e| system("cannot enter the host's network namespace")(e.into()))?;
            run(&up)
        };
        scope.spawn(back).join().expect("the closure does not panic")
    })?;
    configure(bridge, Present::default())
}

/// Removes the outer end left behind by a killed agent, whose namespace may take a moment to disappear.
fn free_outer_end(bridge: Bridge<'_>) -> Result<(), NetError> {
    let name = &bridge.interface.host_name;
    let shown = Command::new("ip").args(["-json", "-details", "link", "show", "dev", name]).output();
    let shown = shown.map_err(|error| NetError::Start { program: "ip", error })?;
    match link_kind(&shown.stdout).as_deref() {
        None if !shown.status.success() => Ok(()),
        Some("veth") => run(&plan::free_outer_end(bridge)),
        kind => Err(NetError::NameTaken { name: name.clone(), kind: kind.unwrap_or("a device").to_owned() }),
    }
}

/// Kind of a device, from the output of `ip -json -details link show dev NAME`.
fn link_kind(json: &[u8]) -> Option<String> {
    let document: serde_json::Value = serde_json::from_slice(json).ok()?;
    document[0]["linkinfo"]["info_kind"].as_str().map(str::to_owned)
}

/// Applies the missing settings to an existing interface.
///
/// # Errors
/// The interface does not exist, or a setting fails.
pub fn attach_none(bridge: Bridge<'_>) -> Result<(), NetError> {
    let shown = exists(&bridge.interface.name)?;
    configure(bridge, present(bridge, &shown))
}

/// Returns the output of `ip -json address show dev NAME`.
fn exists(name: &str) -> Result<Vec<u8>, NetError> {
    let shown = output(Command::new("ip").args(["-json", "address", "show", "dev", name]), "ip");
    shown.map_err(|error| match error {
        NetError::Failed { .. } => NetError::NoInterface { name: name.to_owned() },
        other => other,
    })
}

/// Brings routes in line with a new configuration.
///
/// # Errors
/// A route cannot be set.
pub fn update_routes(config: &AgentConfig) -> Result<(), NetError> {
    config.bridge().map_or(Ok(()), |bridge| plan::routes(bridge).iter().try_for_each(run))
}

/// Prepares a machine to which hosts' routes lead: forwarding, and local delivery of marked packets.
///
/// # Errors
/// The interface does not exist, or a setting fails.
pub fn attach_routed(interface: &str) -> Result<(), NetError> {
    exists(interface)?;
    for name in ["all", interface] {
        let path = format!("net/ipv4/conf/{name}/src_valid_mark");
        let found = std::fs::read_to_string(format!("/proc/sys/{path}")).unwrap_or_default();
        if found.trim() == "1" {
            // Source validation would look up clients' addresses with the agent's mark, and find local addresses.
            let error = std::io::Error::from(ErrorKind::Unsupported);
            return Err(NetError::Sysctl { path, found: "1".to_owned(), wanted: "0".to_owned(), error });
        }
    }
    plan::delivery().iter().try_for_each(run)?;
    plan::forwarding(interface).iter().try_for_each(set)
}

fn configure(bridge: Bridge<'_>, present: Present) -> Result<(), NetError> {
    plan::inner(bridge, present).iter().try_for_each(run)?;
    if let Some(arguments) = plan::without_offload(bridge) {
        output(Command::new("ethtool").args(arguments), "ethtool")?;
    }
    // Not an error: a kernel without segmentation offload for datagrams does not know the setting.
    if let Err(error) = output(Command::new("ethtool").args(plan::datagrams_cut(bridge)), "ethtool") {
        debug!(%error, "datagram segmentation left unchanged");
    }
    plan::sysctls(bridge).iter().try_for_each(set)
}

/// State of the interface, from the output of `ip -json address show dev NAME`.
fn present(bridge: Bridge<'_>, json: &[u8]) -> Present {
    let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let link = &document[0];
    let addresses = link["addr_info"].as_array().cloned().unwrap_or_default();
    let wanted = bridge.interface.address;
    Present {
        mac: link["address"].as_str().and_then(|text| text.parse().ok()) == Some(bridge.interface.mac),
        address: addresses.iter().any(|entry| {
            let local = entry["local"].as_str().and_then(|text| text.parse::<Ipv4Addr>().ok());
            local == Some(wanted.addr()) && entry["prefixlen"].as_u64() == Some(wanted.prefix_len().into())
        }),
    }
}

pub(crate) fn run(command: &Ip) -> Result<(), NetError> {
    match output(Command::new("ip").args(&command.arguments), "ip") {
        Err(NetError::Failed { message, .. }) if command.may_fail => {
            debug!(command = command.arguments.join(" "), message, "nothing to tidy up");
            Ok(())
        }
        other => other.map(|_| ()),
    }
}

fn output(command: &mut Command, program: &'static str) -> Result<Vec<u8>, NetError> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| NetError::Start { program, error })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetError::Failed { command: format!("{program} {}", arguments.join(" ")), message })
}

/// Runs lines of iproute2 in one process and returns their output in JSON. A line that fails, such as the lookup of an unreachable address, does
/// not stop the others.
fn batch(lines: &str) -> Result<Vec<u8>, NetError> {
    let start = |error| NetError::Start { program: "ip", error };
    let mut command = Command::new("ip");
    command.args(["-4", "-json", "-force", "-batch", "-"]);
    let output = with_input(&mut command, lines).map_err(start)?;
    if !output.status.success() {
        debug!(message = %String::from_utf8_lossy(&output.stderr).trim(), "lines of ip -batch failed");
    }
    Ok(output.stdout)
}

/// Runs a command on an input.
fn with_input(command: &mut Command, input: &str) -> std::io::Result<std::process::Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    std::thread::scope(|scope| {
        // Written while the output is read: neither pipe may fill up and block the other. Ignore a broken pipe: the exit status and output of
        // a child that dies early describe the error better.
        scope.spawn(move || _ = stdin.write_all(input.as_bytes()));
        child.wait_with_output()
    })
}

/// Applies a kernel setting. A container often has `/proc/sys` mounted read-only, although it has a network namespace of its own. In that
/// case `/proc/sys` is remounted writable for this process only, which needs `SYS_ADMIN`.
fn set(setting: &Sysctl) -> Result<(), NetError> {
    let path = format!("/proc/sys/{}", setting.path);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found.split_whitespace().eq(setting.value.split_whitespace()) {
        return Ok(());
    }
    let mut written = std::fs::write(&path, &setting.value);
    if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem) {
        written = mount_writable().and_then(|()| std::fs::write(&path, &setting.value));
    }
    match written {
        Ok(()) => Ok(()),
        Err(error) if !setting.required => {
            info!(path, wanted = setting.value, %error, "kernel setting left as it is");
            Ok(())
        }
        Err(error) => {
            let (path, wanted) = (setting.path.clone(), setting.value.clone());
            Err(NetError::Sysctl { path, found: found.trim().to_owned(), wanted, error })
        }
    }
}

fn mount_writable() -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none)?;
    mount(none, "/proc/sys", none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Removes the redirection of packets to this process, on a clean exit from a namespace that outlives the process. Address, forwarding and
/// routes stay: packets that the switches still send here must be forwarded as plain traffic.
pub fn detach() {
    if let Err(error) = nft("table inet sos {\n}\ndelete table inet sos\n") {
        info!(%error, "the nft table stays");
    }
    for command in plan::delivery_undone() {
        if let Err(error) = run(&command) {
            info!(%error, "a rule or route stays");
        }
    }
}

/// Applies a script with `nft -f -`: one transaction.
///
/// # Errors
/// nft is missing or refuses the script.
pub fn nft(script: &str) -> Result<(), NetError> {
    let start = |error| NetError::Start { program: "nft", error };
    let output = with_input(Command::new("nft").args(["-f", "-"]), script).map_err(start)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetError::Failed { command: "nft -f -".to_owned(), message })
}

/// Packet counters of the table, by name.
///
/// # Errors
/// nft or the table is missing.
pub fn nft_counters() -> Result<Vec<(&'static str, u64)>, NetError> {
    let arguments = ["--json", "list", "counters", "table", "inet", "sos"];
    output(Command::new("nft").args(arguments), "nft").map(|json| crate::netns::nft::parse_counters(&json))
}

/// Recent plain connections.
///
/// # Errors
/// nft or the table is missing.
pub fn nft_plain_seen() -> Result<BTreeSet<Seen>, NetError> {
    let arguments = ["--json", "list", "set", "inet", "sos", "plain_seen"];
    output(Command::new("nft").args(arguments), "nft").map(|json| plain_traffic::parse_seen(&json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;

    #[test]
    fn observes_an_interface() {
        let config = config();
        let shown = br#"[{"ifname": "net0", "address": "02:53:00:5f:0c:12", "addr_info": [
            {"family": "inet", "local": "10.0.0.126", "prefixlen": 24},
            {"family": "inet6", "local": "fe80::1", "prefixlen": 64}]}]"#;
        assert_eq!(present(config.bridge().unwrap(), shown), Present { address: true, mac: true });
        let other =
            br#"[{"address": "02:53:00:5f:0c:13", "addr_info": [{"local": "10.0.0.126", "prefixlen": 25}]}]"#;
        assert_eq!(present(config.bridge().unwrap(), other), Present::default());
        assert_eq!(present(config.bridge().unwrap(), b"[]"), Present::default());
        let veth = br#"[{"ifname": "sosag0", "linkinfo": {"info_kind": "veth"}}]"#;
        assert_eq!(link_kind(veth).as_deref(), Some("veth"));
        assert_eq!(link_kind(br#"[{"ifname": "eth0"}]"#), None);
    }
}
