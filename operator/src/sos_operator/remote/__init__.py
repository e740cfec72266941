"""HTTP clients of controllers, nodes and agents. They make no decisions.

`controllers`        sends changed configurations to controllers, and reads their status
`controller_api`     one method per call of a controller's API
`pod_statuses`       reads the status of each node's sos-node, and of agents without a controller
`peers`              exchanges site cards with agents of other clusters
`bounded_requests`   requests with a bounded wait and bounded concurrency
"""
