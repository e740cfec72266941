"""Plain forwarding on datapaths with `forwarding: Controller`, and of punted packets everywhere.

`engine` hands ARP and tracked segments to `l2.Forwarding`, and packets of routed sites to `l3.Routing`; `sessions` releases SYNs that stay
plain through `l2`. Both replan after changes of links, ports or configuration.

- `l2`: host entries, flood tree, host learning (reports hosts at new locations to `sessions.mobility`), release of punted packets
- `host_ageing`: hosts that are silent are asked by ARP, and forgotten if they do not answer
- `l3`: gateways of sites with subnets of their own
- `arp_relay`: ARP between sites that have no plain path
"""
