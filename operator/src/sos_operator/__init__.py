"""Kubernetes operator that makes a cluster match its SOS objects.

kopf wakes (handlers), one loop lists, compiles, plans, applies, pushes and reports (loop, reconcile), and every decision
is in `core`, which knows neither clock nor cluster.
"""

from importlib.metadata import version

__version__ = version("sos-operator")
