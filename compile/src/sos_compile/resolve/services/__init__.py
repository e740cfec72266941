"""Accept services, and order and limit those that cover the same connections. `resolver.resolve` calls the modules in this order.

`placement`         accepted services, their two sites and controller
`client_pods`       pods that services select as clients
`destinations`      prefixes and ports of the Kubernetes Services that services name (spec.to.service)
`balances`          accepted services with spec.balance, their switch and uplinks
`claims`            precedence between namespaces whose services cover the same connections
`stream_settings`   settings of the streams that services between two sites share
`pair_transport`    transport declared for two sites, which takes the place of the services' own settings
`arming`            rejects services that do not fit into the nftables sets of their site's agents
`session_quotas`    each namespace's share of a site's sessions
`shadows`           services hidden by other services
`rejects`           connections that a node's switch resets for spec.require; their entries: `documents.base_flows`
`regions`           helper: sets of connections as products of intervals
"""
