//! Checks of a well-formed document: bounds, and references between its parts.

use std::net::Ipv4Addr;

use super::{
    AgentConfig, ConfigError, Encryption, MAX_AGENTS_PER_PEER, MAX_LIST, MAX_PEERS, MAX_SERVICES,
    MAX_STREAM_PORTS, PortRange,
};

/// Maximum length of an interface name in the kernel (IFNAMSIZ - 1).
const MAX_INTERFACE_NAME: usize = 15;

impl AgentConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.version == "v1alpha1", "version", "must be v1alpha1")?;
        require(self.generation >= 1, "generation", "must be 1 or more")?;
        require(!self.node.is_empty() && self.node.len() <= 63, "node", "must be 1 to 63 bytes long")?;
        check_list(&self.site.prefixes, "site.prefixes")?;
        self.check_interface()?;
        let ports = self.stream_ports;
        require((1..=MAX_STREAM_PORTS).contains(&ports.count), "streamPorts.count", "must be 1 to 8")?;
        require(
            ports.first != 0 && ports.first.checked_add(ports.count - 1).is_some(),
            "streamPorts.first",
            "must be 1 or more and leave room for count ports",
        )?;
        require(self.discovery.beacon_port != 0, "discovery.beaconPort", "must be 1 or more")?;
        require(self.discovery.order_port != 0, "discovery.orderPort", "must be 1 or more")?;
        require(
            self.discovery.order_port != self.discovery.beacon_port,
            "discovery.orderPort",
            "must differ from beaconPort",
        )?;
        let redirect = self.discovery.redirect_port;
        require(redirect != 0, "discovery.redirectPort", "must be 1 or more")?;
        require(!ports.contains(redirect), "discovery.redirectPort", "must not be a stream port")?;
        self.check_limits()?;
        self.check_peers()?;
        self.check_services()
    }

    fn check_interface(&self) -> Result<(), ConfigError> {
        let interface = &self.interface;
        for (name, path) in
            [(&interface.name, "interface.name"), (&interface.host_name, "interface.hostName")]
        {
            let valid = (1..=MAX_INTERFACE_NAME).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && name != "."
                && name != "..";
            require(valid, path, "must be 1 to 15 letters, digits, '-', '_' or '.'")?;
        }
        require((576..=65_535).contains(&interface.mtu), "interface.mtu", "must be 576 to 65535")?;
        require(interface.mac.0[0] & 1 == 0, "interface.mac", "must not be a group address")?;
        let host = interface.address.addr();
        require(usable(host), "interface.address", "must be a host's address")?;
        if let Some(gateway) = interface.gateway {
            require(interface.address.contains(&gateway), "interface.gateway", "must be inside the subnet")?;
        }
        Ok(())
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

    fn check_services(&self) -> Result<(), ConfigError> {
        require(self.services.len() <= MAX_SERVICES, "services", "must be at most 4096")?;
        for (i, service) in self.services.iter().enumerate() {
            let path = format!("services[{i}]");
            require(
                self.peer(&service.peer).is_some(),
                &format!("{path}.peer"),
                &format!("no peer site is named {:?}", service.peer),
            )?;
            check_list(&service.from, &format!("{path}.from"))?;
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
                (1..=MAX_STREAM_PORTS).contains(&service.labels),
                &format!("{path}.labels"),
                "must be 1 to 8",
            )?;
        }
        Ok(())
    }
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
