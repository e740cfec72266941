"""Third site, which joins and leaves: examples/01-two-sites/third-site, on the node that belongs to no other site."""

import time

from conftest import EXAMPLE, Lab, sites_file
from sos_e2e.observation import workload

SOUTH = workload.Host(name="client-south", place="south", site="south", address="10.0.1.11")


def join(lab: Lab, *more: str) -> float:
    """Add the site, with the changes of these example folders; return the time until everything was ready, in seconds."""
    began = time.monotonic()
    lab.kube.ctl("label", "node", lab.nodes["south"], "sos.network/site=south")
    for folder in ("third-site", *more):
        lab.kube.apply_files(EXAMPLE / folder)
    lab.kube.wait_condition("sosservice/from-south", "Ready", namespace="default", timeout=120)
    lab.kube.wait_ready(timeout=120)
    return time.monotonic() - began


def leave(lab: Lab) -> None:
    """Remove the site, and restore the example's other sites."""
    lab.kube.ctl("-n", "default", "delete", "sosservice", "from-south")
    lab.kube.ctl("delete", "sossite", "south", timeout=150)
    lab.kube.apply_files(sites_file(lab))
    lab.kube.ctl("label", "node", lab.nodes["south"], "sos.network/site-")
    lab.kube.wait_ready(timeout=120)
