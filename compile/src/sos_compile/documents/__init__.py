"""`Network` to the three configuration documents of spec/. Pure; one document never depends on another's text.

`compiler.draft` builds all documents without generations, `Draft.issued` adds the generations.

`controller_config`   one per controller: ports, sites, services (spec/controller-config.md)
`node_config`         one per node and site: bridge, uplinks, tunnels, base entries (spec/node-config.md section 1)
`base_flows`          base entries of a node's switch: forward untagged frames without any controller, reset by spec.require (section 2)
`agent_config`        one per agent: address, ports, peers (section 3)
"""
