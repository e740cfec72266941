"""Access to the API server by watches and calls. The core makes all decisions except one: a lost Lease ends the process.

`handlers`               kopf handlers; each only puts a change on the work queue
`watches`                keeps watches running, each in its own thread
`work_queue`             deduplicating queue between watches and the reconcile loop
`observe`                reads changed objects, and keeps all others from the last pass
`workload_pods`          lists and watches users' pods while services select pods
`kubernetes_services`    reads the Services that SosServices name as their destination
`apply`                  carries out a plan's calls, and remembers the result of each apply
`lease`                  acquires, renews and releases the operator's Lease
`lease_watchdog`         ends the process when the Lease may have expired
`client`                 one method per API call; translates errors
"""
