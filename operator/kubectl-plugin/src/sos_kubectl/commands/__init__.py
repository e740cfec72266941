"""One module per verb of `kubectl sos`: options in, one call of the pure packages, lines out.

`status`      every object, and why some are not ready
`topology`    a controller's datapaths, agents, hosts and links
`flows`       sessions, and connections that went plain
`trace`       the expected outcome of one connection, and the reason
`diagnose`    transfers between two sites, judged
`report`      a support bundle
`drain`       agents take no new sessions; wait for their running ones
`uninstall`   the release, removed in order
`options`     options that several verbs share
"""
