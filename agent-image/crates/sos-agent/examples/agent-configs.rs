//! Reads agent-configs from standard input, one per line, and renders for each the output of an agent's start-up: the commands for the
//! network namespace and the nft rules that arm the agent. Prints `LINE: error` for each agent-config that is refused or causes a panic
//! (scripts/worlds.py).

use std::io::{self, BufRead, Write};
use std::panic::catch_unwind;
use std::sync::Arc;

use sos_agent::documents::config::AgentConfig;
use sos_agent::netns::{nft, plan};
use sos_agent::policy::arming::{Coverage, Unreachable};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (number, line) in io::stdin().lock().split(b'\n').enumerate() {
        let line = line?;
        match catch_unwind(|| take(&line)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => writeln!(out, "{number}: {error}")?,
            Err(_) => writeln!(out, "{number}: panic")?,
        }
    }
    Ok(())
}

fn take(document: &[u8]) -> Result<(), String> {
    let config = Arc::new(AgentConfig::parse(document).map_err(|error| error.to_string())?);
    let bridge = config.bridge();
    let commands = bridge.map_or_else(plan::delivery, |bridge| plan::inner(bridge, plan::Present::default()));
    if commands.iter().any(|command| command.arguments.iter().any(String::is_empty)) {
        return Err("a command for the namespace has an empty argument".to_owned());
    }
    let _ = bridge.map(plan::sysctls);
    let agents = config.peers.iter().flat_map(|peer| &peer.agents).map(|agent| agent.id).collect();
    let armed = Coverage::default().armed(&config, &agents, &Unreachable::default());
    if nft::arm(&armed, None).is_empty() {
        return Err("the nft script that arms the agent is empty".to_owned());
    }
    Ok(())
}
