"""Build the four documents of spec/ from a `Network`. Pure; no document depends on another document's text.

`compiler.draft` builds all documents without generations, `Draft.issued` adds the generations.

`controller_config`   one per controller: ports, sites, services (spec/controller-config.md)
`node_config`         one per node and site: bridge, uplinks, tunnels, base entries (spec/node-config.md section 1)
`node_configs`        those of a site, with tunnels and base entries in parts if they are many
`base_flows`          base entries of a node's switch: forwarding without a controller, and resets for spec.require (section 2)
`agent_config`        one per agent: address, ports, peers (section 3)
`agent_configs`       those of a pool at a site, with their common members in parts
`parts`               members that the documents of a folder have in common, in files of their own (clause 46)
`enrollment`          one per machine outside Kubernetes: its keys and agents of the cluster (spec/card.md section 5)
`site_card`           one per SosPeer: sites, agents, services (spec/card.md section 3)
"""
