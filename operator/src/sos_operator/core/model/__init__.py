"""Values that all decisions share, parsed from answers of the API server, nodes, agents and controllers.

`kinds`             kinds of objects the operator reads and writes
`objects`           API objects: JSON content, and the view that the edge parses from it
`cluster_objects`   views of pods, nodes, workloads, ConfigMaps, Secrets and Services
`custom_resources`  views of SOS custom resources
`parse`             chooses the view of an object by its kind
`errors`            errors the operator handles; anything else is a bug
`options`           settings of the process, as values
`world`             `Seen`, everything listed; conversion to `sos_compile.World`
`pod_state`         state of pods, DaemonSets and Deployments
`remote/`           status of sos-node, of agents without a controller, and of controllers
`conditions`        converts verdicts to `status.conditions`
"""
