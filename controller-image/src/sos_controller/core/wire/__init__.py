"""Conversion between bytes and values, without decisions.

`engine` decodes packet-ins with `packets`, `lldp`, `beacon` and `order`; `sessions` and `forwarding` encode the packets that they send.

- `packets`: Ethernet, ARP, IPv4, TCP, UDP, ICMP, by slicing
- `lldp`: probes between switches
- `beacon`: agents' announcements; `order`: orders between controller and agents
- `path_report`, `plain_report`: bodies of agents' reports
- `keys`: derived keys and tags; `replay`: replay windows
"""
