"""Traffic, and its observation.

`workload` runs client and server pods and transfers between them, `external_switch` a switch and a host outside the cluster; `load`
runs a long download and frequent new connections while things break. `sampler` records what SOS holds, `growth` decides whether a
series grows without end, `node_state` compares a node before and after, `dump` writes everything that explains a failure.
"""
