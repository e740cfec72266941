"""Network -> controller-config (spec/controller-config.md)."""

from __future__ import annotations

from sos_compile.documents.node_config import MESH_LIMIT
from sos_compile.model.addresses import address_text
from sos_compile.model.formats import controller as doc
from sos_compile.model.formats import shared
from sos_compile.model.memo import ByIdentity, Memo
from sos_compile.model.network import Network, PlacedBalance, PlacedService, PlacedSite
from sos_compile.model.resources import Link, Transport
from sos_compile.model.world import Json


def build_controller_config(network: Network, name: str, generation: int, memo: Memo) -> Json:
    """Return the document of one controller: its sites, the services between them and the links among them."""
    sites = network.sites_of(name)
    names, controller = {placed.site.name for placed in sites}, network.controllers[name]
    config = doc.ControllerConfig(
        generation=generation,
        controller=doc.ControllerIdentity(
            name=name, id=network.allocations.controllers[name], tls=controller.tls, replicas=controller.replicas
        ),
        sites=[_site(placed, network, among_switches=any(each.site.switches for each in sites)) for placed in sites],
        services=[build_service(placed, network, memo) for placed in network.services if placed.controller == name],
        balances=[_balance(placed) for placed in network.balances if placed.controller == name],
        links=[_link(link) for link in network.links if link.a[0] in names and link.b[0] in names],
    )
    return shared.encode(config)


def _site(placed: PlacedSite, network: Network, *, among_switches: bool) -> doc.SiteEntry:
    """Return a site's entry. `among_switches`: the controller forwards plain traffic at some switch, and must know the links without plain
    traffic."""
    site = placed.site
    # Hosts behind a LAN port may be behind an external switch, whose links are discovered.
    lan = {port.name for port in site.lan} if among_switches else set()
    labelled = [uplink.name for uplink in site.uplinks if not uplink.base] if among_switches else []
    meshed = {node.number for node in network.mesh_of(placed)[:MESH_LIMIT] if node.node.address}
    nodes = [
        doc.DatapathEntry(
            dpid=node.dpid,
            name=node.node.name,
            forwarding="Node",
            labelled_ports=labelled,
            link_ports=sorted({uplink.name for uplink in site.uplinks} | lan),
            tunnel=node.number if node.number in meshed else 0,
        )
        for node in placed.nodes
    ]
    switches = [
        doc.DatapathEntry(
            dpid=dpid,
            name=name,
            forwarding="Controller",
            tls="Disabled" if dpid in site.plain_switches else "Required",
            link_ports=list(site.link_ports[dpid]) if dpid in site.link_ports else None,
        )
        for dpid, name in site.switches
    ]
    return doc.SiteEntry(
        name=site.name,
        id=placed.id,
        prefixes=[str(prefix) for prefix in site.prefixes],
        subnet=None if site.subnet is None else str(site.subnet),
        gateway=address_text(site.gateway.ip if site.gateway else None),
        transit=site.transit,
        mtu=site.mtu,
        rewrite=site.rewrite,
        datapaths=sorted([*nodes, *switches], key=lambda entry: entry.dpid),
        agents=[doc.AgentEntry(id=a.id, pool=a.pool, node=a.node, address=str(a.address)) for a in placed.agents],
        shares=[doc.ShareEntry(namespace=n, percent=p, standing=s) for n, p, s in network.shares.get(site.name, ())],
    )


def build_service(placed: PlacedService, network: Network, memo: Memo) -> doc.ServiceEntry:
    """Return a service's entry; most are unchanged since the last compilation."""
    ends = (ByIdentity(network.sites[name].site) for name in (placed.source, placed.target))
    covered = (placed.source_prefixes, placed.target_prefixes, placed.ports, placed.transport)
    return memo.entries.get((ByIdentity(placed.service), *ends, *covered), lambda: _service(placed))


def _service(placed: PlacedService) -> doc.ServiceEntry:
    service = placed.service
    return doc.ServiceEntry.model_validate(
        {
            "id": service.id,
            "priority": service.priority,
            "mode": service.mode,
            # 0: the controller refuses connections whose requirement cannot be met, and no agent knows the service.
            "percent": 0 if placed.unencrypted else service.percent,
            "setup": service.setup,
            "accept": service.accept,
            "require": sorted(service.require),
            "from": doc.ServiceEnd(site=placed.source, prefixes=[str(prefix) for prefix in placed.source_prefixes]),
            "to": doc.ServiceEnd(site=placed.target, prefixes=[str(prefix) for prefix in placed.target_prefixes]),
            "ports": build_ports(placed.ports),
            "transport": build_transport(placed.transport),
            "paths": {"mode": service.paths_mode, "max": service.paths_max},
        }
    )


def _balance(placed: PlacedBalance) -> doc.BalanceEntry:
    service = placed.service
    return doc.BalanceEntry.model_validate(
        {
            "id": service.id,
            "priority": service.priority,
            "site": placed.site,
            "dpid": placed.dpid,
            "client": str(placed.client),
            "to": [str(prefix) for prefix in service.target.prefixes],
            "ports": build_ports(placed.ports),
            "at": service.balance.at if service.balance else "Controller",
            "uplinks": [
                {
                    "name": up.name,
                    "address": address_text(up.address.ip if up.address else None),
                    "gateway": str(up.gateway),
                    "weight": weight,
                }
                for up, weight in placed.uplinks
            ],
        }
    )


def build_ports(ranges: tuple[tuple[int, int], ...]) -> list[shared.PortRange]:
    """Return port ranges in the documents' form."""
    return [shared.PortRange(first=first, last=last) for first, last in ranges]


def build_transport(transport: Transport) -> shared.Transport:
    """Return transport settings for a controller: encryption and compression concern the agents only."""
    return shared.Transport.model_validate(transport_values(transport))


def transport_values(transport: Transport) -> Json:
    """Return the transport settings common to controllers and agents."""
    return {
        "streams": transport.streams,
        "blockBytes": transport.block_bytes,
        "queueBytes": transport.queue_bytes,
        "congestionControl": transport.congestion_control,
        "protocol": transport.protocol,
    }


def _link(link: Link) -> doc.LinkEntry:
    a, b = (doc.LinkEnd(site=site, uplink=uplink) for site, uplink in (link.a, link.b))
    return doc.LinkEntry(a=a, b=b, cost=link.cost, capacity_mbps=link.capacity_mbps or 0)
