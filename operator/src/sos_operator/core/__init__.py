"""Pure decisions: no clock, no sockets, no Kubernetes client. Values in, values out.

A pass uses the packages in this order; each imports only those below it.

`status`       desired state and answers -> statuses and events
`desired`      everything seen -> manifests and documents
`scheduling`   when a pass runs; leader election
`secrets`      keys and tokens, and their rotation
`plan`         desired and present children -> calls that make them agree
`model`        values that all of them share
"""
