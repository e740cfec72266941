"""Probe pods of `kubectl sos diagnose`, and their addresses. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from itertools import chain, islice
from typing import Any

Json = dict[str, Any]

COMPONENT = "diagnose"
CONTAINER = "probe"
LIFE_S = 600
"""Lifetime of a pod: a pod that could not be deleted ends by itself."""
NETWORKS = "k8s.v1.cni.cncf.io/networks"
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
INTERFACE = "net1"
LABELS = {"app.kubernetes.io/name": "sos", "app.kubernetes.io/component": COMPONENT, "app.kubernetes.io/managed-by": "kubectl-sos"}
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items() if key != "app.kubernetes.io/name")
LOOKED_AT = 4_096
"""Maximum number of addresses tried, from the highest down: hosts are usually numbered from the lowest up."""


def assigns(network: Json) -> bool:
    """True if a NetworkAttachmentDefinition assigns addresses by itself; with the default IPAM, each pod declares its address."""
    try:
        kind = json.loads(network["spec"]["config"]).get("ipam", {}).get("type", "static")
    except (KeyError, ValueError, AttributeError):
        return False
    return bool(kind != "static")


def free_address(prefixes: list[str], subnet: str, taken: Iterable[str]) -> str | None:
    """Return the highest address of some prefixes that is not known to be taken, as address/length."""
    whole = IPv4Network(subnet)
    refused = {IPv4Address(one) for one in taken} | {whole.network_address, whole.broadcast_address}
    for address in islice(chain.from_iterable(_downwards(prefix) for prefix in prefixes), LOOKED_AT):
        if address in whole and address not in refused:
            return f"{address}/{whole.prefixlen}"
    return None


def _downwards(prefix: str) -> Iterable[IPv4Address]:
    network = IPv4Network(prefix, strict=False)
    return (network[index] for index in range(network.num_addresses - 1, -1, -1))


def taken(config: Json, topology: Json) -> set[str]:
    """Every address known to be taken. A single address in a service or balance is a host, even if the controller has not learnt it."""
    agents = {agent["address"] for site in config["sites"] for agent in site["agents"]}
    gateways = {site["gateway"].partition("/")[0] for site in config["sites"] if site.get("gateway")}
    heard = {address for host in topology["hosts"] for address in host.get("addresses") or filter(None, [host["address"]])}
    prefixes = [prefix for service in config.get("services", ()) for end in ("from", "to") for prefix in service[end]["prefixes"]]
    balances = config.get("balances", ())
    prefixes += [prefix for balance in balances for prefix in balance["to"]] + [balance["client"] for balance in balances]
    single = {
        str(network.network_address) for network in (IPv4Network(prefix, strict=False) for prefix in prefixes) if network.num_addresses == 1
    }
    return agents | gateways | heard | single


def addresses_asked(pods: list[Json]) -> set[str]:
    """Addresses that probe pods have, or will have once they run."""
    found: set[str] = set()
    for pod in pods:
        try:
            rows = json.loads((pod["metadata"].get("annotations") or {}).get(NETWORKS, "[]"))
            found |= {ip.partition("/")[0] for row in rows for ip in row.get("ips") or ()}
        except (ValueError, AttributeError, TypeError):
            continue  # written by another program
    return found


def build(name: str, network: Json, agents: Json, switch: Json, address: str | None) -> Json:
    """Build a pod that waits for commands, on a node of a site and on the site's network.

    Image and pull settings come from the DaemonSet of the site's agents (`agents`), the nodes from the DaemonSet of its switches
    (`switch`).
    """
    told, where = agents["spec"]["template"]["spec"], switch["spec"]["template"]["spec"]
    meta = network["metadata"]
    asked: Json = {"name": meta["name"], "namespace": meta["namespace"], "interface": INTERFACE, **({"ips": [address]} if address else {})}
    (image,) = [container for container in told["containers"] if container["name"] == "agent"]
    container = {
        "name": CONTAINER,
        "image": image["image"],
        "imagePullPolicy": image.get("imagePullPolicy", "IfNotPresent"),
        "command": ["sleep", str(LIFE_S)],
        "securityContext": {
            **{"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534, "allowPrivilegeEscalation": False},
            **{"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
        },
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **{"name": name, "namespace": meta["namespace"], "labels": LABELS},
            "annotations": {NETWORKS: json.dumps([asked])},
        },
        "spec": {
            **{"restartPolicy": "Never", "activeDeadlineSeconds": LIFE_S, "terminationGracePeriodSeconds": 0},
            **{"automountServiceAccountToken": False, "enableServiceLinks": False},
            **{key: told[key] for key in ("imagePullSecrets",) if key in told},
            **{key: where[key] for key in ("affinity", "tolerations") if key in where},
            # by default, only root may listen on ports below 1024, and a service may cover no other ports
            "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
            "containers": [container],
        },
    }


def address_of(pod: Json) -> str | None:
    """A pod's address on the site's network, as recorded by Multus."""
    text = (pod["metadata"].get("annotations") or {}).get(NETWORK_STATUS, "")
    try:
        rows = json.loads(text)
    except ValueError:
        return None
    found = [row for row in rows if isinstance(row, dict) and row.get("interface") == INTERFACE]
    return str(found[0]["ips"][0]).partition("/")[0] if found and found[0].get("ips") else None


def why_not_ready(pod: Json) -> str:
    """Reason for which a pod is not ready, in the cluster's words."""
    status = pod.get("status") or {}
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()]
    said = [f"{state.get('reason', '')} {state.get('message', '')}".strip() for state in waiting if state.get("reason")]
    said += [condition.get("message", "") for condition in status.get("conditions") or () if condition.get("status") == "False"]
    return next((words for words in said if words), f"it is {status.get('phase', 'Pending')}")
