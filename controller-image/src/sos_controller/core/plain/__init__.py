"""Connections that a service covers and that stay plain TCP.

`sessions.setup` names a reason for each, counts the connection in `traffic`, and asks `backoff` before it tries agents again.

- `reason`: closed set of reasons, shared with agents, metrics, API and status
- `traffic`: counters and samples per service and reason
- `backoff`: clients and servers that agents failed to serve, left plain for increasing times
"""
