"""Tables of `state`: sessions, agents and policies.

Every part of the engine reads and changes them; no table calls back into the engine. Each is bounded and deterministic.

- `sessions`: sessions, their phases and transitions; `agent_sessions`: sessions that agents began without an order
- `recent_flows`: flows that a switch may still have cached; `accepting_servers`: servers that accepted a connection recently
- `agents`: live agents, beacons, replay windows; `order_rto`: retransmission time-out of orders to one agent
- `policies`: the service that covers a SYN, and its matches; `policy_index`: its look-up by addresses and port
- `shares`: share of a site's sessions per namespace; `port_shares`: share of the sessions and set-ups per switch port
- `service_state`: reasons of the condition `Programmed`
- `histogram`: durations in fixed buckets, for the metrics
"""
