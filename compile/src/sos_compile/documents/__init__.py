"""Build the four documents of spec/ from a `Network`. Pure; no document depends on another document's text.

`compiler.draft` builds all documents without generations, `Draft.issued` adds the generations.

`controller_config`   one per controller: ports, sites, services (spec/controller-config.md)
`node_config`         one per node and site: bridge, uplinks, tunnels, base entries (spec/node-config.md section 1)
`base_flows`          base entries of a node's switch: forwarding without a controller, and resets for spec.require (section 2)
`agent_config`        one per agent: address, ports, peers (section 3)
`enrollment`          one per machine outside Kubernetes: its keys and agents of the cluster (spec/card.md section 5)
`site_card`           one per SosPeer: sites, agents, services (spec/card.md section 3)
"""
