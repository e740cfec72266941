//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use sos_daemon::log::LogFormat;

/// Relays chosen TCP connections over many streams to the agent at the other site.
#[derive(Debug, Parser)]
#[command(name = "sos-agent", version)]
pub struct Cli {
    /// The agent-config: a file, or a folder that holds <NODE>.json
    #[arg(long, value_name = "PATH", required_unless_present = "enrollment")]
    pub config: Option<PathBuf>,
    /// Name of this node
    #[arg(long, value_name = "NAME", required_unless_present = "enrollment")]
    pub node: Option<String>,
    /// Folder of key files (site-<keyid>, pair-<site id>-<keyid>, card-<pairing id>-<keyid>)
    #[arg(long, value_name = "DIR", required_unless_present_any = ["check", "enrollment"])]
    pub keys: Option<PathBuf>,
    /// The file of `kubectl sos enroll`, on a machine outside Kubernetes: the agent receives its configuration from the cluster
    #[arg(long, value_name = "PATH", conflicts_with_all = ["config", "node", "keys", "peers"])]
    pub enrollment: Option<PathBuf>,
    /// Folder for the last good configuration
    #[arg(long, value_name = "DIR", required_unless_present = "check")]
    pub state: Option<PathBuf>,
    /// Source of the agent's network interface
    #[arg(long, value_enum, default_value_t = Attach::Host)]
    pub attach: Attach,
    /// Folder of the network namespaces of the node's pods (intake Pods)
    #[arg(long, value_name = "DIR", default_value = "/run/netns")]
    pub netns: PathBuf,
    /// File of peer clusters; while it exists, site cards are exchanged with them
    #[arg(long, value_name = "PATH")]
    pub peers: Option<PathBuf>,
    /// Form of the log on standard error; RUST_LOG filters it
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Check the configuration and exit: print the error and exit 1, or print ok and exit 0
    #[arg(long)]
    pub check: bool,
}

/// Source of the agent's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// Make a network namespace and a veth pair; the outer end stays in this namespace
    Host,
    /// Use this network namespace, which is the agent's own and already has the interface
    None,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn keys_and_state_are_needed_to_run_but_not_to_check() {
        assert!(Cli::try_parse_from(["sos-agent", "--config", "x", "--node", "n"]).is_err());
        assert!(Cli::try_parse_from(["sos-agent", "--config", "x", "--node", "n", "--check"]).is_ok());
    }

    #[test]
    fn an_enrollment_replaces_configuration_node_and_keys() {
        let with = |more: &[&str]| {
            let arguments = ["sos-agent", "--enrollment", "e", "--state", "s"];
            Cli::try_parse_from(arguments.iter().chain(more)).is_ok()
        };
        assert!(with(&[]) && with(&["--check"]));
        for other in ["--config", "--node", "--keys", "--peers"] {
            assert!(!with(&[other, "x"]), "{other}");
        }
        assert!(Cli::try_parse_from(["sos-agent", "--enrollment", "e"]).is_err(), "a state folder is needed");
    }
}
