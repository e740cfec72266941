"""Network state that the controller has learned.

`engine` feeds `links` with received probes, `forwarding` feeds `hosts`, `balance` feeds `neighbours`, and agents' reports feed
`path_stats`. `services` and `forwarding` compute paths and trees over the graph of `links`.

- `links`: links between datapaths, from probes; the graph
- `paths`: shortest and disjoint paths, spanning tree
- `hosts`: location of each host
- `neighbours`: routers and hosts resolved by ARP
- `path_stats`: rates and round-trip times that agents report
"""
