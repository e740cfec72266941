"""Peers: installations of SOS in other clusters (spec/card.md). Pure: no socket, no clock.

`pairing`     the Secret of a pairing, and the keys derived from it
`messages`    Offer and Answer as bytes
`contact`     what is known of a peer: its card, its installation, when it last answered
`desired`     what a pass does for peers: exchanges, cards, ConfigMaps, key files
`documents`   ConfigMaps: the file of the agents, and the last card of each peer

`remote.peers` connects to the peers' agents and reports contacts; `reconcile` hands the cards to the compilation, and the compilation's own
cards to `remote.peers`.
"""
