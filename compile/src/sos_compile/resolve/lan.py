"""Check LAN interfaces of nodes (spec.network.lan): a LAN is attached at one node.

Interfaces with the same name on several nodes usually lead to the same LAN, which would form a ring with the connection between the nodes.
So a site with several nodes must name the node of each interface. The bridge cannot detect a ring through a LAN: the LAN's switches do not
forward link-local frames (IEEE 802.1Q-2022, 8.6.3), so no probe of the controller returns.
"""

from __future__ import annotations

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedSite
from sos_compile.model.problem import Reason


def attached_once(sites: list[PlacedSite], verdicts: Verdicts) -> list[PlacedSite]:
    """Return the sites without those that attach an interface of several nodes; warn about nodes outside the site."""
    return [placed for placed in sites if _attached_once(placed, verdicts)]


def _attached_once(placed: PlacedSite, verdicts: Verdicts) -> bool:
    nodes = {node.node.name for node in placed.nodes}
    for i, each in enumerate(placed.site.lan):
        path = f"spec.network.lan[{i}].node"
        if not each.node and len(nodes) > 1:
            message = f"interface {each.name} of {len(nodes)} nodes would be attached, and a LAN behind several of them would form a ring"
            remedy = "name the node of each LAN interface, and attach a LAN at one node only"
            verdicts.reject(placed.site.origin, path, Reason.BASE_LOOP, message, remedy)
            return False
        if each.node and each.node not in nodes:
            message = f"the site has no node {each.node}: its interface {each.name} is not attached"
            verdicts.warn(placed.site.origin, path, Reason.NODE_NOT_FOUND, message, "name a node of the site, or change spec.nodeSelector")
    return True
