"""The API server: watches in, calls out. Decisions are the core's, except that a lost Lease ends the process.

`handlers`         kopf handlers; each only puts a change on the work queue
`watches`          keeps watches running, each in a thread of its own
`work_queue`       deduplicating queue between watches and the reconcile loop
`observe`          lists what changed since the last pass and keeps the rest
`apply`            carries out a plan's calls, and remembers what each apply left
`lease`            acquires, renews and releases the operator's Lease
`lease_watchdog`   ends the process when the Lease may have expired
`client`           one method per API call; translates errors
"""
