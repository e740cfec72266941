"""Timing of passes, and election of the operator that makes them.

`change_queue`   changes since the last pass, bounded; overflow means relist
`backoff`        delay before the next pass, after success and after failure
`lease`          leader election: rules for reading and writing a Lease
"""
