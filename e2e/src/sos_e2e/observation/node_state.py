"""Node state that software may leave behind: interfaces, bridges, addresses, routes, rules, nftables, sysctls, namespaces, files.

Network state is read with the tools of the engine's machine, inside the node's network namespace; files, and pods' network namespaces,
with the node's own tools.
Objects that pods, the network plugin and kube-proxy constantly create and remove are ignored: they change without SOS, too.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sos_e2e.environment.cluster import pid
from sos_e2e.run import run

State = Mapping[str, frozenset[str]]  # kind of state -> its lines
_LINK_LOCAL = re.compile(r"\bfe80::[0-9a-f]+:[0-9a-f:]+")  # with an interface identifier, unlike the prefix fe80::/64

_LINK_KEYS = ("ifname", "mtu", "link_type", "address", "master", "promiscuity", "txqlen", "group")
_A_PODS = re.compile(r"\b(veth[0-9a-f]+|kube-bridge\b)")
"""Names that network plugins give to the node's ends of pods' veth pairs, and the bridge of these, whose addresses come and go with pods.

The suite's own cables have other names.
"""
_OTHERS_CHAINS = re.compile(r"\b((KUBE|CNI)-|DOCKER_)")
"""Chains of kube-proxy, of network plugins and of the engine; the engine's DNS ports change when a node restarts."""
_SYSCTLS = re.compile(r"^net\.(?!.*(_count|\.stat|random|\.drop_entry|\.flush|somaxconn|fib_notify))")
FOLDERS = ("/etc", "/opt", "/usr", "/home", "/root", "/srv", "/tmp", "/run", "/var/lib", "/var/tmp", "/var/spool")
# Files of other programs: container runtime, kubelet, etcd, network plugins' records of running pods, logs of system services.
_OTHERS_FILES = (
    "/etc/kubernetes", "/run/containerd", "/run/systemd", "/run/log", "/run/udev", "/run/lock", "/run/xtables.lock", "/run/flannel",
    "/run/kubernetes", "/run/secrets", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/systemd", "/var/lib/cni",
    "/var/lib/nerdctl", "/run/multus", "/run/nri", "/run/utmp", "/run/cni-ipam-state",
)  # fmt: skip


def links(found: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Interfaces with their types, without the veth pairs of pods."""
    lines = set()
    for link in found:
        if not _A_PODS.match(link["ifname"]):
            kind = link.get("linkinfo", {}).get("info_kind", "")
            flags = sorted(set(link.get("flags", ())) & {"UP", "PROMISC", "NOARP", "ALLMULTI"})
            # a cable has new MAC addresses after it has been plugged again
            keys = [key for key in _LINK_KEYS if key in link and (key, kind) != ("address", "veth")]
            lines.add(" ".join([kind, *(f"{key}={link[key]}" for key in keys), *flags]))
    return frozenset(lines)


def addresses(found: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Addresses by interface, without their lifetimes."""
    return frozenset(
        f"{link['ifname']} {info['local']}/{info['prefixlen']} {info.get('scope', '')}"
        for link in found
        if not _A_PODS.match(link["ifname"])
        for info in link.get("addr_info", ())
        if "local" in info
    )


def plain(text: str) -> frozenset[str]:
    """Lines that do not name a pod's veth interface."""
    return frozenset(" ".join(line.split()) for line in text.splitlines() if line.strip() and not _A_PODS.search(line))


def tables(ruleset: Mapping[str, Any]) -> frozenset[str]:
    """Tables of nftables with their chains, sets and rules, without the objects of kube-proxy and network plugins."""
    lines = set()
    for entry in ruleset["nftables"]:
        for kind, what in entry.items():
            if kind == "metainfo":
                continue
            said = json.dumps({key: value for key, value in what.items() if key not in ("handle", "index")}, sort_keys=True)
            said = re.sub(r'"(packets|bytes)": \d+', r'"\1": 0', said)
            if not _OTHERS_CHAINS.search(said) and "kube" not in what.get("table", what.get("name", "")):
                lines.add(f"{kind} {said}")
    return frozenset(lines)


def sysctls(text: str) -> frozenset[str]:
    """Network sysctls, without counters and without pods' interfaces."""
    return frozenset(line for line in text.splitlines() if _SYSCTLS.match(line) and not _A_PODS.search(line))


def offloads(text: str) -> frozenset[str]:
    """Lines `INTERFACE: FEATURE: on` of permanent interfaces."""
    return frozenset(line for line in text.splitlines() if not _A_PODS.match(line))


def files(text: str) -> frozenset[str]:
    """Lines `TYPE SIZE PATH`, without files of other programs and namespaces of pods."""
    lines = set()
    for line in text.splitlines():
        kind, size, path = line.split(" ", 2)
        if path.startswith(tuple(f"{folder}/" for folder in _OTHERS_FILES)) or path in _OTHERS_FILES or "/netns/cni-" in path:
            continue
        lines.add(f"{kind} {size} {path}" if kind == "f" and path.startswith(("/etc/", "/opt/", "/usr/")) else f"{kind} {path}")
    return frozenset(lines)


def look(node: str) -> State:
    """Current state of one node."""
    inside = ("nsenter", "-t", str(pid(node)), "-n")

    def ip(*words: str) -> Any:
        return json.loads(run(*inside, "ip", "-j", *words) or "[]")

    names = [link["ifname"] for link in ip("link") if not _A_PODS.match(link["ifname"])]
    features = [f"{name}: {line.strip()}" for name in names for line in run(*inside, "ethtool", "-k", name, check=False).splitlines()[1:]]
    find = ("find", *FOLDERS, "-xdev", "-printf", "%y %s %p\\n")
    return {
        "interfaces and bridges": links(ip("-d", "link")),
        "offloads": offloads("\n".join(features)),
        "addresses": addresses(ip("addr")),
        "routes": plain(run(*inside, "ip", "route", "show", "table", "all") + run(*inside, "ip", "-6", "route", "show", "table", "all")),
        "rules": plain(run(*inside, "ip", "rule") + run(*inside, "ip", "-6", "rule")),
        "nftables": tables(json.loads(run(*inside, "nft", "-j", "list", "ruleset"))),
        "sysctls": sysctls(run(*inside, "sysctl", "-a", check=False)),
        "files": files(run("docker", "exec", node, *find, check=False)),
    }


# The namespace of the pod with the address $0, with the node's own tools.
_POD_NAMESPACE = """
for namespace in /run/netns/*; do
  nsenter --net="$namespace" ip -4 addr show | grep -qw "$0" || continue
  exec nsenter --net="$namespace" "$@"
done
exit 1
"""


def look_into_pod(node: str, address: str) -> State:
    """Current state of the network namespace of the pod with this address, with words in place of the pod's own addresses: a pod that has
    been started again has others."""

    def inside(*command: str) -> str:
        return run("docker", "exec", node, "sh", "-c", _POD_NAMESPACE, address, *command)

    found: dict[str, frozenset[str]] = {
        "interfaces": links(json.loads(inside("ip", "-j", "-d", "link"))),
        "addresses": addresses(json.loads(inside("ip", "-j", "addr"))),
        "routes": plain(inside("ip", "route", "show", "table", "all") + inside("ip", "-6", "route", "show", "table", "all")),
        "rules": plain(inside("ip", "rule") + inside("ip", "-6", "rule")),
        "nftables": plain(inside("nft", "list", "ruleset")),
        "sysctls": sysctls(inside("sysctl", "-a")),
    }
    return without_own_addresses(found, address)


def without_own_addresses(state: State, address: str) -> State:
    """Return the state of a pod with words in place of its IPv4 address and its link-local IPv6 address."""
    own = re.compile(rf"(?<![\d.]){re.escape(address)}(?![\d.])")
    return {what: frozenset(_LINK_LOCAL.sub("LINK-LOCAL", own.sub("POD", line)) for line in lines) for what, lines in state.items()}


def differences(before: State, after: State, folders: Iterable[str] = ()) -> list[str]:
    """Difference as lines `WHAT: + line` and `WHAT: - line`; additions in these folders, and the folders themselves, are left out."""
    fine = re.compile("|".join(rf"files: \+ \S {re.escape(folder)}(/.*)?\Z" for folder in folders) or "(?!)")
    said = []
    for what in sorted(set(before) | set(after)):
        was, now = before.get(what, frozenset()), after.get(what, frozenset())
        said += [f"{what}: + {line}" for line in sorted(now - was)] + [f"{what}: - {line}" for line in sorted(was - now)]
    return [line for line in said if not fine.match(line)]
