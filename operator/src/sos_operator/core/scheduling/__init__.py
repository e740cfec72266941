"""When a pass runs, and in which operator.

`change_queue`   changes since the last pass, bounded; overflow means relist
`backoff`        delay before the next pass, after success and after failure
`lease`          leader election: what a Lease says, and what to write to it
"""
