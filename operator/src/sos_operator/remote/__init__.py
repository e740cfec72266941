"""HTTP clients of controllers and nodes. They make no decisions.

`controllers`        sends changed configurations to controllers, and reads their status
`controller_api`     one method per call of a controller's API
`nodes`              reads the status of each node's sos-node
`bounded_requests`   requests with a bounded wait and bounded concurrency
"""
