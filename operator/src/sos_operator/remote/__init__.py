"""Controllers and nodes, asked over HTTP. No decisions.

`controllers`        sends each controller its configuration when that differs, and reads its status
`controller_api`     one method per call of a controller's API
`nodes`              reads the status of each node's sos-node
`bounded_requests`   requests with a bounded wait and bounded concurrency
"""
