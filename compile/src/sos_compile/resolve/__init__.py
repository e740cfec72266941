"""Resolve the admitted objects into one `Network`: names to objects, selectors to nodes, numbers and addresses allocated.

`resolver.resolve` calls the modules in this order; each step takes the objects that the previous step accepted.

`sites`                 accepted sites, their nodes and node numbers
`broadcast_loops`       rejects links that would close a loop for broadcasts
`agents`                agent pools: node, slot and address of each agent
`peers`                 sites of peers, from their site cards; services that both clusters have
`services`              accepted services, their two sites and controller
`client_pods`           pods that services select as clients
`balances`              accepted services with spec.balance, their switch and uplinks
`claims`                precedence between namespaces whose services cover the same connections
`stream_settings`       settings of the streams that services between two sites share
`pair_transport`        transport declared for two sites, which takes the place of the services' own settings
`session_quotas`        each namespace's share of a site's sessions
`shadows`               services hidden by other services
`rejects`               connections that a node's switch resets for spec.require; their entries: `documents.base_flows`
`allocate`, `regions`   helpers: stable number allocation; sets of connections as products of intervals
"""
