"""Services: entries for a whole service, and when they are installed.

After a change, `engine` calls `plan.Plan.replan`, which lets the pairs of agents (`pairs`) and the parts below plan what has changed.

- `plan`: order of planning, and the status of services
- `arming`: punt entries of services; `guards`: entries that exempt agents and switches
- `proactive`: services with standing entries; `agent_ring`: choice among several agents of a datapath; `agent_rings`: members of rings
- `cache_guard`: keeps new sessions from being forwarded by cached megaflows
- `fragments`, `icmp_errors`: IP fragments and ICMP errors of sessions' segments
- `passive_measurement`: single connections measured from copied packets; `gain`: speed of accelerated relative to plain connections
"""
