"""Status of each object: facts of a pass in, reports, status patches and events out.

`report`          status of every object, from one `Situation`
`acceleration`    whether a service's connections are accelerated in fact
`overlaps`        conditions of services that cover the same connections
`status_writer`   statuses that differ from the cluster's, and the events that go with them
"""
