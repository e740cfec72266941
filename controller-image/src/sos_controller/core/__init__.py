"""Pure core of the controller: no sockets, clocks, randomness, files, threads, logging or framework.

`engine.Engine.handle(event, now)` is the only entry point. It hands the event to one of the parts below, which read and change the shared
`state`, and returns a list of `commands`. Each package imports only packages listed after it (`.importlinter`).

- `snapshot`: JSON of the northbound API; `engine`: dispatch of events, timers
- `sessions/`: from a SYN to a redirected flow, and its teardown
- `services/`: entries for services, and the choice of agents and paths
- `balance/`: connections spread over uplinks without agents; `forwarding/`: plain L2 and L3 forwarding
- `stale_entries`: entries left by an earlier run; `state`: all tables, and the clock
- `tables/`: sessions, agents, policies, desired flow entries per datapath
- `topology/`: links, paths, hosts; `plain/`: connections that stay plain, and the reasons
- `events`, `commands`: input and output of the engine
- `wire/`: packets, beacons, orders; `openflow/`: flow entries and groups as values; `config`, `types`
"""
