"""Sessions: from a punted SYN to a redirected flow, and to teardown.

`engine` hands each punted SYN to `setup.SetUp.syn`. `setup` calls `admission` once, which returns a route or the reason why the connection
stays plain. With a route, `setup` sends Prepare orders and installs redirect entries; when the agents are ready and all barriers have been
answered, it delivers the SYN. `teardown` ends each side.

- `admission`: decides whether a SYN gets a session, and remembers decisions for plain TCP
- `routes`: choice of agents, path labels and datapaths for one flow, from the entries of `services.plan`
- `setup`: states of a session up to ACTIVE; time-outs and retransmission of Prepare
- `prepare_body`: bodies of Prepare orders; `order_sender`: signs and sends orders and probes
- `redirect`: flow entries of one session
- `agent_messages`: beacons and orders of agents, and agents without beacons; calls `setup` and `teardown`
- `server_lookup`: ARP requests for unknown servers; the SYN is not delayed: `setup` installs egress entries on all switches of the site
- `refusal`: resets for services that require acceleration
- `mobility`: detects a host with sessions at another switch, and moves its redirect entries
- `teardown`: ends, reports, dead agents, adoption after a restart; `half_open`: detects half-open host connections
"""
