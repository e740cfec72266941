"""Build the Kubernetes manifests that the operator applies from a `Network` and its documents.

`build.build_manifests` calls one module per owner; these modules use `common` and `naming`.

`build`            all manifests of a network; objects kept although their owner is rejected
`site`             SosSite: DaemonSet of Open vSwitch and sos-node, node-configs, NetworkAttachmentDefinition
`agent`            SosAgent at a SosSite: DaemonSet of agents, agent-configs
`controller`       managed SosController: Deployment, Services, ConfigMap
`pod_protection`   NetworkPolicies and PodDisruptionBudgets
`kernel_modules`   container that loads kernel modules before the switch starts
`common`           metadata, labels, owner references, and the parts of pods
`naming`           names of rendered objects: stable, unique, at most 63 characters
"""
