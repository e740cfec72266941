"""OpenFlow as values: the desired entries and groups of switches. The package `sos_controller.openflow` encodes them.

Packages above build `flow_entries.FlowEntry` values from the numbers in `pipeline`; `flow_tables.programmer` compares and sends them.

- `flow_entries`: matches (of untagged frames, unless `any_vlan`), actions, entries, and the difference of two tables
- `groups`: select groups
- `pipeline`: tables, priorities, cookies, path MAC addresses
- `port_masks`: port ranges as masked matches
- `election`: which of the replicas of a controller is active, by role requests
- `channel_policy`: TLS or plain TCP, and the datapaths of a certificate
- `arp_responder`: entries by which a switch answers ARP
"""
