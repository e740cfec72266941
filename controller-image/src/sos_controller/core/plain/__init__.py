"""Connections that a service covers and that stay plain TCP.

`sessions.admission` determines the reason for each such connection, counts the connection in `traffic`, and checks `backoff` before each
set-up.

- `reason`: closed set of reasons, shared with agents, metrics, API and status
- `outcome`: outcomes of SYNs and ends of sessions, each with its reason for plain TCP
- `traffic`: counters and samples per service and reason
- `backoff`: clients and servers that agents failed to serve, left plain for increasing times
"""
