"""Network state that the controller has learned.

`engine` feeds `links` with received probes and `tunnels` with ports, `forwarding` feeds `hosts`, `balance` feeds `neighbours`, and
agents' reports feed `path_stats`. `services` and `forwarding` compute paths and trees over the graph of `links`.

- `links`: links between datapaths, from probes and tunnels
- `tunnels`: tunnels that the configuration declares and switches watch
- `link_graph`: graph of the links and costs in it, kept incrementally
- `paths`: shortest and disjoint paths, spanning tree
- `path_cache`: paths that are kept until a change may affect them
- `hosts`: location of each host
- `neighbours`: routers and hosts resolved by ARP
- `path_stats`: rates and round-trip times that agents report
"""
