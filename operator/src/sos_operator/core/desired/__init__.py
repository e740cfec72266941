"""Desired state: everything seen in, the manifests and documents that the cluster should hold out.

`output.build_output` is the entry: it compiles, then adds departing sites and nodes, then issues a generation.

`output`               one compilation with its departures, issued under a generation
`generation`           when the generation grows, and the ConfigMap that keeps it
`departure`            sites being deleted: their nodes clean up before their pods go
`departed_nodes`       nodes that left a site that stays
`retained_children`    children kept as they are while their owner is invalid
`network_attachment`   DaemonSets that need Multus in a cluster without it
`rollout`              staged rollout of changed node-configs, node by node
`pod_refresh`          annotations that make the kubelet refresh a pod's volumes at once
`finalizer`            the finalizer of a SosSite
`release`              children of the release rather than of one object
"""
