"""Resolve the admitted objects into one `Network`: names to objects, selectors to nodes, numbers and addresses allocated.

`resolver.resolve` calls the modules in this order; each step takes the objects that the previous step accepted.

`sites`             accepted sites, their nodes and node numbers
`lan`               rejects sites that could attach one LAN at several nodes
`broadcast_loops`   rejects links that would close a loop for broadcasts
`agents`            agent pools: node, slot and address of each agent
`peers`             sites of peers, from their site cards; services that both clusters have
`card_bounds`       helper: counts the services in the card for a peer; `peers.in_force` rejects services that do not fit
`services`          accepted services: their sites, clients, order, transport and shares (a package)
`allocate`          helper: stable number allocation
"""
