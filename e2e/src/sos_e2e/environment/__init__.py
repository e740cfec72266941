"""The environment of the tests, in the order in which the fixtures build it.

`images` builds the project's images on `base_images` and checks their `image_sizes`. `registry` runs a registry beside the clusters.
`cluster` creates the kind cluster, if asked with another `network_plugin` than kind's, `cables` connects its nodes by emulated WAN links,
and `cni` installs Multus and ovs-cni. `pair` creates two clusters with a link between them instead, `network_policy` enforces
NetworkPolicies in them, and `machine` adds a gateway outside Kubernetes. `kube_router` is the program of `network_plugin` and
`network_policy`. `power` stops and starts a cluster. `previous_version` builds the previous version.
"""
