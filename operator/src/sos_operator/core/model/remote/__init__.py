"""Status that the operator reads from other programs, as values; the package `remote` of the operator makes the requests.

`node_status`       status of a node's sos-node, and the nodes to query next
`agent_status`      status of an agent without a controller
`controller_view`   status of each controller, as last reported
"""
