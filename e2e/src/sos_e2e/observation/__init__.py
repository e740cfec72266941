"""Traffic and its observation.

`workload` runs client and server pods and transfers between them; `external_switch` runs a switch and a host outside the cluster. `load`
runs a long download and frequent new connections during faults. `sampler` records the resources of SOS, and `growth` decides whether a
series grows without bound. `node_state` compares a node's state before and after SOS; `dump` writes diagnostic data after a failure.
"""
