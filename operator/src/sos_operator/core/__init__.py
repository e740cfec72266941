"""Pure decisions: no clock, no sockets, no Kubernetes client. Values in, values out.

Each package imports only packages listed below it.

`status`       desired state and answers -> statuses and events
`desired`      everything seen -> manifests and documents
`scheduling`   timing of passes; leader election
`peers`        pairings and site cards of other clusters
`secrets`      keys and tokens, and their rotation
`plan`         desired and present children -> calls that make them agree
`workloads`    users' pods and Services that SosServices select or name
`model`        values that all packages share
"""
