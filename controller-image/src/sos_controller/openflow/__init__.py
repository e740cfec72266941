"""OpenFlow 1.3 on the wire, and the connection to a switch. Only this package imports Ryu.

`accept` accepts a socket, for TLS carries out the handshake (`tls`), and starts `connection.serve`. The connection frames and parses
messages (`ofp`) and reports them to `app` through the interface of `receiver`; `app` queues encoded commands (`flow_mods`, `ofp`,
`rewrite`) on the connection.

- `framework`: eventlet's patches and Ryu's handshake; to be imported first
- `accept`: listener, bounds on connections; `tls`: TLS with the methods of a socket
- `connection`: receive loop, liveness, backlog of a switch; `receiver`: interface to `app`
- `ofp`: messages; `oxm`: matches; `flow_mods`: commands as messages
- `rewrite`: actions that rewrite, groups; `learn`: Open vSwitch's learn actions; `nicira`: its other extensions
"""
