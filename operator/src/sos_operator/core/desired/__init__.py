"""Desired state: the manifests and documents that follow from everything seen.

`output.build_output` is the entry: it compiles, then adds departing sites and nodes, then issues a generation.

`output`               one compilation with its departures, issued under a generation
`generation`           rules for raising the generation, and the ConfigMap that stores it
`departure`            sites being deleted: nodes clean up before their pods are deleted
`departed_nodes`       departed nodes of sites that stay
`retained_children`    children kept as they are while their owner is invalid
`network_attachment`   DaemonSets that need Multus in a cluster without it
`rollout`              staged rollout of changed node-configs, node by node
`expected_pods`        number of pods that should run, for alerts
`pod_refresh`          annotations that make the kubelet refresh a pod's volumes immediately
`finalizer`            the finalizer of a SosSite
`release`              children that belong to the release, not to one object
"""
