"""`kubectl sos`: show what a cluster's SOS objects and controllers report, for operators at a terminal.

`commands`         one module per verb
`cli`              options and completion; only it, `commands` and `__main__` know click
`diagnose`         facts and findings of `diagnose`
`views`            pure views of `status`, `topology`, `flows`, `trace`
`lifecycle`        `drain` and `uninstall`
`support_bundle`   the archive of `report`
`peering`          pure part of `peer`
`enrollment`       pure part of `enroll`
`targets`          clusters and labs with hosts that send probes
`base`             kubectl and controllers as sources, tables, signals, names
"""
