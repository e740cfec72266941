"""Peers: installations of SOS in other clusters (spec/card.md). Pure: no socket, no clock.

`pairing`     the Secret of a pairing, and the keys derived from it
`messages`    Offer and Answer as bytes
`contact`     state of a peer: its card, its installation, the time of its last message
`machine`     machines outside Kubernetes: their reports and configurations
`desired`     desired state: exchange targets, cards in use, ConfigMaps, key files
`documents`   ConfigMaps: the file for the agents, and the last card of each peer

`remote.peers` connects to the peers' agents and reports contacts; `reconcile` passes the peers' cards to the
compiler, and this cluster's cards from the compiler to `remote.peers`.
"""
