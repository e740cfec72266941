"""Hosts, switches, agents and emulated links in network namespaces of one machine.

| package | role |
|---|---|
| `cli` | the commands of `./lab`; calls `lifecycle` and `measurements` |
| `core` | pure: topology -> ordered steps, each with its undo |
| `lifecycle` | a lab from up to down: carries the steps out, starts the parts, waits, breaks and removes |
| `measurements` | transfers over a lab that is up: demo, bench, balance over uplinks |
"""
