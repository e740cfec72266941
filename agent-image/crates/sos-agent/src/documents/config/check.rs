//! Checks of a well-formed document: bounds, and references between its parts.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use sos_daemon::document::ConfigError;

use super::{
    AgentConfig, Discovery, Encryption, Intake, Interface, MAX_AGENTS_PER_PEER, MAX_LIST, MAX_PEERS,
    MAX_PODS, MAX_SERVICES, MAX_STREAM_PORTS, PeerAgent, PortRange, ProxyProtocol, Rewrite, Setup, Source,
};

/// Maximum length of an interface name in the kernel (IFNAMSIZ - 1).
const MAX_INTERFACE_NAME: usize = 15;

impl AgentConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.version == "v1alpha1", "version", "must be v1alpha1")?;
        require(self.generation >= 1, "generation", "must be 1 or more")?;
        require(!self.node.is_empty() && self.node.len() <= 63, "node", "must be 1 to 63 bytes long")?;
        check_list(&self.site.prefixes, "site.prefixes")?;
        self.check_attachment()?;
        let ports = self.stream_ports;
        require((1..=MAX_STREAM_PORTS).contains(&ports.count), "streamPorts.count", "must be 1 to 8")?;
        require(
            ports.first != 0 && ports.first.checked_add(ports.count - 1).is_some(),
            "streamPorts.first",
            "must be 1 or more and leave room for count ports",
        )?;
        self.check_limits()?;
        self.check_peers()?;
        self.check_services()?;
        self.check_shares()
    }

    fn check_attachment(&self) -> Result<(), ConfigError> {
        if !self.wan.is_empty() {
            return self.check_routes();
        }
        require(self.intake.is_none(), "wan", "is missing: intake is for agents without a bridge")?;
        require(self.pods.is_none(), "pods", "must be absent at a site with a bridge")?;
        for (i, service) in self.services.iter().enumerate() {
            let preserved = service.source == Source::Preserve;
            require(preserved, &format!("services[{i}].source"), "must be Preserve at a site with a bridge")?;
        }
        let interface = self.interface.as_ref().ok_or_else(|| ConfigError::new("interface", "is missing"))?;
        let discovery = self.discovery.as_ref().ok_or_else(|| ConfigError::new("discovery", "is missing"))?;
        check_interface(interface)?;
        self.check_discovery(discovery)
    }

    /// Checks an agent without a bridge, which has no interface, no discovery address and no controllers.
    fn check_routes(&self) -> Result<(), ConfigError> {
        require(self.interface.is_none(), "interface", "must be absent where wan has addresses")?;
        require(self.discovery.is_none(), "discovery", "must be absent where wan has addresses")?;
        let at_site = self.site.rewrite == Rewrite::Transparent;
        require(at_site, "site.rewrite", "must be Transparent: no switch rewrites")?;
        let labels = usize::from(self.stream_ports.count);
        require(
            self.wan.len() == labels,
            "wan",
            "must have one address for each of streamPorts.count labels",
        )?;
        check_path_addresses(&self.wan, "wan")?;
        match &self.intake {
            None => Err(ConfigError::new("intake", "is missing")),
            Some(Intake::Routed { interface, virtual_address }) => {
                let is_host = virtual_address.is_none_or(usable);
                check_name(interface, "intake.interface")
                    .and_then(|()| require(is_host, "intake.virtualAddress", "must be a host's address"))
            }
            Some(Intake::Pods { .. }) => Ok(()),
        }?;
        self.check_pods()?;
        for (i, service) in self.services.iter().enumerate() {
            let proactive = service.setup == Setup::Proactive;
            require(proactive, &format!("services[{i}].setup"), "must be Proactive: there is no controller")?;
        }
        Ok(())
    }

    fn check_pods(&self) -> Result<(), ConfigError> {
        let Some(pods) = &self.pods else { return Ok(()) };
        require(self.is_in_pods(), "pods", "must be absent unless intake.type is Pods")?;
        require(pods.len() <= MAX_PODS, "pods", "must be at most 512")?;
        let mut seen = BTreeSet::new();
        for (i, pod) in pods.iter().enumerate() {
            let path = format!("pods[{i}].address");
            require(usable(pod.address), &path, "must be a host's address")?;
            require(seen.insert(pod.address), &path, "is a second pod at one address")?;
            require(!self.wan.contains(&pod.address), &path, "is an address of this agent")?;
        }
        Ok(())
    }

    fn check_discovery(&self, discovery: &Discovery) -> Result<(), ConfigError> {
        require(discovery.beacon_port != 0, "discovery.beaconPort", "must be 1 or more")?;
        require(discovery.order_port != 0, "discovery.orderPort", "must be 1 or more")?;
        require(
            discovery.order_port != discovery.beacon_port,
            "discovery.orderPort",
            "must differ from beaconPort",
        )?;
        let redirect = discovery.redirect_port;
        require(redirect != 0, "discovery.redirectPort", "must be 1 or more")?;
        require(!self.stream_ports.contains(redirect), "discovery.redirectPort", "must not be a stream port")
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = self.limits;
        require((1..=1_000_000).contains(&limits.sessions), "limits.sessions", "must be 1 to 1000000")?;
        require((16..=1_048_576).contains(&limits.memory_mib), "limits.memoryMiB", "must be 16 to 1048576")?;
        require(
            (1..=limits.memory_mib.min(65_536)).contains(&limits.session_memory_mib),
            "limits.sessionMemoryMiB",
            "must be 1 to memoryMiB, at most 65536",
        )?;
        require(self.drain_seconds <= 86_400, "drainSeconds", "must be 86400 or less")
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        require(self.peers.len() <= MAX_PEERS, "peers", "must be at most 1024")?;
        for (i, peer) in self.peers.iter().enumerate() {
            let path = format!("peers[{i}]");
            let known = self.peers[..i].iter().any(|p| p.site == peer.site || p.site_id == peer.site_id);
            require(!known, &path, "is a second entry for the same site")?;
            require(
                peer.site_id != self.site.id,
                &format!("{path}.siteID"),
                "must not be the agent's own site",
            )?;
            check_list(&peer.prefixes, &format!("{path}.prefixes"))?;
            require(
                peer.agents.len() <= MAX_AGENTS_PER_PEER,
                &format!("{path}.agents"),
                "must be at most 1024",
            )?;
            for (j, agent) in peer.agents.iter().enumerate() {
                let path = format!("{path}.agents[{j}]");
                require(agent.id != self.agent_id, &format!("{path}.id"), "is this agent's own id")?;
                require(usable(agent.address), &format!("{path}.address"), "must be a host's address")?;
                check_addresses(agent, &path)?;
                let room = agent.first_stream_port.checked_add(MAX_STREAM_PORTS - 1);
                require(
                    agent.first_stream_port != 0 && room.is_some(),
                    &format!("{path}.firstStreamPort"),
                    "must be 1 to 65528",
                )?;
            }
        }
        Ok(())
    }

    fn check_shares(&self) -> Result<(), ConfigError> {
        require(self.shares.len() <= MAX_SERVICES, "shares", "must be at most 4096")?;
        require(
            self.shares.is_empty() || self.interface.is_none(),
            "shares",
            "must be absent at a site with a bridge",
        )?;
        let mut known = BTreeSet::new();
        for (i, share) in self.shares.iter().enumerate() {
            let path = format!("shares[{i}]");
            require((1..=100).contains(&share.percent), &format!("{path}.percent"), "must be 1 to 100")?;
            require(
                known.insert(share.namespace.as_str()),
                &format!("{path}.namespace"),
                "is a second share of one namespace",
            )?;
        }
        Ok(())
    }

    fn check_services(&self) -> Result<(), ConfigError> {
        require(self.services.len() <= MAX_SERVICES, "services", "must be at most 4096")?;
        for (i, service) in self.services.iter().enumerate() {
            let path = format!("services[{i}]");
            require(
                self.peer(&service.peer).is_some(),
                &format!("{path}.peer"),
                &format!("no peer site is named {:?}", service.peer),
            )?;
            require(
                (1..=MAX_PODS).contains(&service.from.len()),
                &format!("{path}.from"),
                "must have 1 to 512 elements",
            )?;
            check_list(&service.to, &format!("{path}.to"))?;
            check_ports(&service.ports, &format!("{path}.ports"))?;
            let transport = service.transport;
            require(transport.streams <= 256, &format!("{path}.transport.streams"), "must be at most 256")?;
            require(
                transport.block_bytes <= 262_144,
                &format!("{path}.transport.blockBytes"),
                "must be at most 262144 (frame.md clause 4)",
            )?;
            require(
                !service.encrypted_only || transport.encryption == Encryption::Tls,
                &format!("{path}.encryptedOnly"),
                "needs transport.encryption TLS",
            )?;
            require(
                service.proxy_protocol == ProxyProtocol::None || service.source == Source::Agent,
                &format!("{path}.proxyProtocol"),
                "needs source Agent: with Preserve, the server sees the client's address",
            )?;
            require(
                (1..=MAX_STREAM_PORTS).contains(&service.labels),
                &format!("{path}.labels"),
                "must be 1 to 8",
            )?;
        }
        Ok(())
    }
}

fn check_interface(interface: &Interface) -> Result<(), ConfigError> {
    check_name(&interface.name, "interface.name")?;
    check_name(&interface.host_name, "interface.hostName")?;
    require((576..=65_535).contains(&interface.mtu), "interface.mtu", "must be 576 to 65535")?;
    require(interface.mac.0[0] & 1 == 0, "interface.mac", "must not be a group address")?;
    let host = interface.address.addr();
    require(usable(host), "interface.address", "must be a host's address")?;
    if let Some(gateway) = interface.gateway {
        require(interface.address.contains(&gateway), "interface.gateway", "must be inside the subnet")?;
    }
    Ok(())
}

fn check_name(name: &str, path: &str) -> Result<(), ConfigError> {
    let valid = (1..=MAX_INTERFACE_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && name != "."
        && name != "..";
    require(valid, path, "must be 1 to 15 letters, digits, '-', '_' or '.'")
}

fn check_addresses(agent: &PeerAgent, path: &str) -> Result<(), ConfigError> {
    require(agent.prefixes.len() <= MAX_LIST, &format!("{path}.prefixes"), "must have at most 64 elements")?;
    let Some(first) = agent.addresses.first() else { return Ok(()) };
    let path = format!("{path}.addresses");
    require(*first == agent.address, &format!("{path}[0]"), "must be the same as address")?;
    require(agent.addresses.len() <= usize::from(MAX_STREAM_PORTS), &path, "must have at most 8 elements")?;
    check_path_addresses(&agent.addresses, &path)
}

/// Checks the addresses of paths: hosts' addresses, all different.
fn check_path_addresses(addresses: &[Ipv4Addr], path: &str) -> Result<(), ConfigError> {
    for (i, address) in addresses.iter().enumerate() {
        let path = format!("{path}[{i}]");
        require(usable(*address), &path, "must be a host's address")?;
        require(!addresses[..i].contains(address), &path, "is a second path at one address")?;
    }
    Ok(())
}

fn require(holds: bool, path: &str, message: &str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::new(path, message)) }
}

fn usable(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

fn check_list<T>(list: &[T], path: &str) -> Result<(), ConfigError> {
    require((1..=MAX_LIST).contains(&list.len()), path, "must have 1 to 64 elements")
}

fn check_ports(ports: &[PortRange], path: &str) -> Result<(), ConfigError> {
    check_list(ports, path)?;
    for (i, range) in ports.iter().enumerate() {
        require(range.first != 0, &format!("{path}[{i}].first"), "must be 1 or more")?;
        require(range.last >= range.first, &format!("{path}[{i}].last"), "must not be below first")?;
    }
    Ok(())
}
