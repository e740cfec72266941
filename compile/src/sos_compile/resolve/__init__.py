"""Resolve the admitted objects into one `Network`: names to objects, selectors to nodes, numbers and addresses allocated.

`resolver.resolve` calls the modules in this order; each step takes the objects that the previous step accepted.

`sites`             accepted sites, their nodes and node numbers
`broadcast_loops`   rejects links that would close a loop for broadcasts
`agents`            agent pools: node, slot and address of each agent
`peers`             sites of peers, from their site cards; services that both clusters have
`services`          accepted services: their sites, clients, order, transport and shares (a package)
`allocate`          helper: stable number allocation
"""
