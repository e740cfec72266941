"""Labels by which the plugin selects objects."""

from __future__ import annotations

OPERATORS_CHILDREN = "app.kubernetes.io/managed-by=sos-operator"
"""Objects that an operator has created."""
PART_OF = "app.kubernetes.io/part-of=sos"
"""All objects of SOS, also those of the chart."""
