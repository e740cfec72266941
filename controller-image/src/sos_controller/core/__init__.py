"""Pure core of the controller: no sockets, clocks, randomness, files, threads, logging or framework.

`engine.Engine.handle(event, now)` is the only entry point. It hands the event to one of the parts below, which read and change the shared
`state`, and returns a list of `commands`. Each package imports only packages listed after it (`.importlinter`).

- `snapshot`: JSON of the northbound API; `engine`: dispatch of events, timers; `replan_gap`: gaps between replans
- `sessions/`: from a SYN to a redirected flow, and its teardown
- `services/`: entries for services
- `balance/`: connections spread over uplinks without agents; `forwarding/`: plain L2 and L3 forwarding
- `pairs/`: pairs of agents and their paths, and the choice of a pair
- `probing`: probes of links and their age; `stale_entries`: entries left by an earlier run; `table_limits`: switches whose tables are full
- `entry_check`: external switches that do not have the entries that they acknowledge; `state`: all tables, and the clock
- `flow_tables/`: desired entries per datapath, and the space for them; `tables/`: sessions, agents, policies
- `topology/`: links, paths, hosts; `plain/`: connections that stay plain, and the reasons
- `events`, `commands`: input and output of the engine
- `wire/`: packets, beacons, orders; `openflow/`: flow entries and groups as values; `config`, `types`
"""
