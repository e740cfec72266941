"""Tables of `state`: sessions, agents, policies, and the desired entries of datapaths.

Every part of the engine reads and changes them; no table calls back into the engine. Each is bounded and deterministic.

- `sessions`: sessions, their phases and transitions; `agent_sessions`: sessions that agents began without an order
- `recent_flows`: flows that a switch may still have cached; `accepting_servers`: servers that accepted a connection recently
- `agents`: live agents, beacons, replay windows; `order_rto`: retransmission time-out of orders to one agent
- `policies`: the service that covers a SYN, and its matches; `shares`: share of a site's sessions per namespace
- `service_state`: reasons of the condition `Programmed`
- `programmer`: desired, sent and acknowledged entries per datapath; `batches`: barriers shared by several sessions
"""
