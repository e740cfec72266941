"""Kubernetes operator that makes a cluster match its SOS objects.

kopf handlers only wake the loop. A pass lists, compiles, plans, applies, pushes and reports; every decision is in `core`.

`__main__`    command line: run, uninstall
`uninstall`   removes the release: sites first, then children, users' objects on request
`loop`        waits for changes or the next due time; one pass at a time
`reconcile`   the body of a pass
`cluster`     the API server: watches, lists, applies, leader election
`remote`      controllers and nodes, over HTTP
`process`     settings, logs, metrics, health
`core`        pure decisions
"""

from importlib.metadata import version

__version__ = version("sos-operator")
