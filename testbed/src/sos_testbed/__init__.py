"""Hosts, switches, agents and emulated links in network namespaces of one machine.

| package | role |
|---|---|
| `cli` | the commands of `./lab`; calls `lifecycle` and `measurements` |
| `core` | pure: converts a topology to ordered steps, each with its undo |
| `lifecycle` | life cycle of a lab: executes the steps, starts the parts, waits for them, injects faults, removes the lab |
| `measurements` | transfers over a running lab: demo, bench, balance over uplinks |
"""
