"""Pairs of agents: the pairs that services or sessions use, their paths, and the choice of a pair for a flow.

After a change, `services.plan` updates `site_agents` and lets `pair_planner` plan the pairs that are affected. For each new flow,
`sessions.routes` chooses among the working pairs between two sites (`candidates`).

- `site_agents`: live agents by site
- `pair_planner`: pairs of agents that services or sessions use; `agent_pairs`: paths between two agents and their entries
- `table_capacity`: pairs and services whose entries fit into the tables of datapaths
- `candidates`: working pairs between two sites; `pair_selection`: choice of a pair; `path_choice`: choice of a path
"""
