"""Services: entries for a whole service, and the rules by which agents and paths are chosen for a session.

After a change, `engine` calls `plan.Plan.replan`, which recomputes pairs, guards and punts, then replans the parts below it. For each new
flow, `sessions.routes` chooses among the pairs of agents in the plan (`candidates`).

- `plan`: standing entries (punts, guards, paths), and the pairs of agents with these entries
- `agent_pairs`: paths between two agents and their entries; `pair_selection`: choice of a pair; `path_choice`: choice of a path
- `proactive`: services with standing entries; `cache_guard`: keeps new sessions from being forwarded by cached megaflows
- `fragments`, `icmp_errors`: IP fragments and ICMP errors of sessions' segments
- `table_capacity`: free entries in a datapath's table
- `passive_measurement`: single connections measured from copied packets; `gain`: speed of accelerated relative to plain connections
"""
