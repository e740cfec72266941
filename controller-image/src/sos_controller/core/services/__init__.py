"""Services: entries that stand for a whole service, and the choice of agents and paths for a session.

After a change, `engine` calls `plan.Plan.replan`, which recomputes pairs, guards and punts, then replans the parts below it. For each new
flow, `sessions.setup` asks `plan` for agents (`choose`), labels and transport.

- `plan`: standing entries (punts, guards, paths), and questions about one new flow
- `agent_pairs`: paths between two agents and their entries; `pair_selection`: choice of a pair; `path_choice`: choice of a path
- `proactive`: services whose entries stand before any SYN; `cache_guard`: keeps cached megaflows off new sessions
- `fragments`, `icmp_errors`: IP fragments and ICMP errors of sessions' segments
- `table_capacity`: room in a datapath's table
- `passive_measurement`: single connections measured from copied packets; `gain`: accelerated against plain
"""
