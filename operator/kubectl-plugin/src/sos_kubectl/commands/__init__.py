"""One module per verb of `kubectl sos`: each module parses options, calls a pure package, and prints lines.

`status`      every object, with the reason if it is not ready
`topology`    a controller's datapaths, agents, hosts and links
`flows`       sessions, and connections that went plain
`trace`       the expected outcome of one connection, and the reason
`diagnose`    test transfers between two sites, and their findings
`report`      a support bundle
`drain`       agents take no new sessions; wait for running sessions
`enroll`      a machine outside Kubernetes becomes a site
`peer`        pair this cluster with another one
`uninstall`   ordered removal of the release
`estimate`    the expected gain on a path, without a cluster
`version`     versions of the plugin and of the cluster's components
"""
