"""Detection of leftovers on a node; needs no cluster."""

from sos_e2e.observation import node_state


def test_interfaces_are_compared_without_veth_pairs_of_pods() -> None:
    wan = {
        "ifname": "wan0",
        "mtu": 1500,
        "address": "02:00:00:00:00:01",
        "promiscuity": 0,
        "linkinfo": {"info_kind": "veth"},
        "flags": ["UP"],
    }
    pod = {"ifname": "veth4b1d22f0", "mtu": 1500, "linkinfo": {"info_kind": "veth"}}
    before, after = node_state.links([wan, pod]), node_state.links([{**wan, "promiscuity": 1, "flags": ["UP", "PROMISC"]}])
    assert before == node_state.links([wan])
    (gone, came) = sorted(node_state.differences({"interfaces": before}, {"interfaces": after}), reverse=True)
    assert came.startswith("interfaces: + veth ifname=wan0") and came.endswith("promiscuity=1 PROMISC UP")
    assert gone.startswith("interfaces: - veth ifname=wan0")


def test_a_remaining_bridge_is_reported() -> None:
    left = node_state.links([{"ifname": "br-sos", "mtu": 1500, "linkinfo": {"info_kind": "tun"}}])
    assert node_state.differences({"links": frozenset()}, {"links": left}) == ["links: + tun ifname=br-sos mtu=1500"]


def test_routes_and_rules_of_pods_are_ignored() -> None:
    assert node_state.plain("10.244.1.3 dev veth0a1b2c3d scope host\n\ndefault  via 172.18.0.1 dev eth0 \n") == {
        "default via 172.18.0.1 dev eth0"
    }


def test_a_pod_that_has_been_started_again_has_the_same_state() -> None:
    def state(address: str, link_local: str, more: str = "") -> node_state.State:
        lines = {
            f"10.61.1.0/24 via 10.61.1.1 dev eth0 src {address}",
            f"local {link_local} dev eth0 table local",
            "fe80::/64 dev eth0",
            more,
        }
        return node_state.without_own_addresses({"routes": frozenset(lines)}, address)

    before = state("10.61.1.2", "fe80::b01c:32ff:feac:a08e")
    assert node_state.differences(before, state("10.61.1.8", "fe80::84a1:ff:fe7d:92e1")) == []
    left = state("10.61.1.2", "fe80::b01c:32ff:feac:a08e", "default via 10.61.1.21 dev lo")
    assert "routes: + default via 10.61.1.21 dev lo" in node_state.differences(before, left)


def test_nftables_are_compared_without_objects_of_the_cluster() -> None:
    def rule(table: str, chain: str, packets: int) -> dict[str, object]:
        counter = {"counter": {"packets": packets, "bytes": 60 * packets}}
        return {"rule": {"family": "inet", "table": table, "chain": chain, "handle": packets, "expr": [counter]}}

    ours = {"table": {"family": "inet", "name": "sos", "handle": 9}}
    kube = [rule("nat", "KUBE-SVC-X", 1), rule("kube-proxy", "services", 1), {"table": {"family": "ip", "name": "kube-proxy", "handle": 1}}]
    before = node_state.tables({"nftables": [{"metainfo": {"version": "1"}}, *kube, rule("mine", "input", 4)]})
    assert before == node_state.tables({"nftables": [rule("mine", "input", 7)]}), "changed counters are no difference"
    (left,) = node_state.differences({"nftables": before}, {"nftables": node_state.tables({"nftables": [rule("mine", "input", 4), ours]})})
    assert left == 'nftables: + table {"family": "inet", "name": "sos"}'


def test_files_of_other_programs_are_ignored() -> None:
    others = "f 12 /var/lib/kubelet/pods/x\nf 5 /run/netns/cni-12\n"
    rest = "d 4096 /var/lib/sos\nf 3 /etc/hosts\nf 9 /var/lib/kubelet.extra\nf 8 /run/x y\n"
    assert node_state.files(others + rest) == {"d /var/lib/sos", "f 3 /etc/hosts", "f /var/lib/kubelet.extra", "f /run/x y"}


def test_network_sysctls_are_compared_without_counters() -> None:
    text = "net.ipv4.ip_forward = 1\nnet.netfilter.nf_conntrack_count = 12\nnet.ipv4.conf.veth0a1b2c.rp_filter = 0\nkernel.pid_max = 3\n"
    assert node_state.sysctls(text) == {"net.ipv4.ip_forward = 1"}


def test_only_listed_folders_and_their_content_may_remain() -> None:
    before = {"files": frozenset({"d /a", "f /run/sos/old"})}
    after = {"files": frozenset({"d /run/sos", "f /run/sos/x y", "d /run/sos2", "f /etc/run/sos/x"})}
    said = node_state.differences(before, after, ["/run/sos", "/var/lib/sos"])
    assert said == ["files: + d /run/sos2", "files: + f /etc/run/sos/x", "files: - d /a", "files: - f /run/sos/old"]
    assert len(node_state.differences(before, after)) == 6


def test_a_replugged_cable_is_no_difference() -> None:
    def link(kind: str, address: str) -> frozenset[str]:
        return node_state.links([{"ifname": "wan0", "address": address, "linkinfo": {"info_kind": kind}}])

    assert link("veth", "02:00:00:00:00:01") == link("veth", "02:00:00:00:00:02")
    assert link("vlan", "02:00:00:00:00:01") != link("vlan", "02:00:00:00:00:02")
