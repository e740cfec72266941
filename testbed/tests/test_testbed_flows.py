"""Parsing of flow table dumps."""

from sos_testbed.core.flows import FlowEntry, parse_flows

PUNT = "tcp,nw_dst=10.0.0.128/25,tp_dst=80,tcp_flags=+syn-ack"
DUMP = f"""OFPST_FLOW reply (OF1.3) (xid=0x2):
 cookie=0x534f000100001234, duration=12.345s, table=0, n_packets=7, n_bytes=420, priority=65000,dl_type=0x88cc actions=CONTROLLER:65535
 cookie=0x534f010101000001, duration=1.0s, table=0, n_packets=1, n_bytes=74, hard_timeout=5, priority=30000,{PUNT} actions=CONTROLLER:128
 cookie=0x0, duration=3s, table=1, n_packets=0, n_bytes=0, priority=0 actions=NORMAL
 cookie=0x0, duration=3s, table=1, n_packets=0, n_bytes=0, in_port=2 actions=drop
"""


def test_entries_are_ordered_by_table_and_priority() -> None:
    entries = parse_flows(DUMP)
    assert [(entry.table, entry.priority) for entry in entries] == [(0, 65000), (0, 30000), (1, 32768), (1, 0)]
    assert entries[0] == FlowEntry(
        table=0, priority=65000, match="dl_type=0x88cc", actions="CONTROLLER:65535", cookie=0x534F000100001234, n_packets=7, n_bytes=420
    )
    assert entries[1].match == f"hard_timeout=5,{PUNT}"
    assert entries[3].match == ""


def test_identity_ignores_counters_only() -> None:
    later = parse_flows(DUMP.replace("n_packets=7", "n_packets=9").replace("12.345s", "99.1s"))
    assert [entry.identity() for entry in later] == [entry.identity() for entry in parse_flows(DUMP)]
    other = parse_flows(DUMP.replace("NORMAL", "drop"))
    assert [entry.identity() for entry in other] != [entry.identity() for entry in parse_flows(DUMP)]
