"""Balance: connections of a host spread over uplinks, without agents (docs/adr/0013).

`engine` hands SYNs of balance punts, ARP and ticks to `balances.Balances`, which learns routers by ARP, picks uplinks, and replaces its
entries and groups through `state.programmer`.

- `balances`: decisions and state of all balances
- `policy`: one balance, parsed for its datapath
- `entries`: flow entries and groups of one balance; `arp`: ARP entries by which the switch answers by itself
- `ovs_round_robin`: weighted round robin inside Open vSwitch, without a controller
- `weighted_round_robin`: weighted round robin in the controller, for SYNs punted to it
"""
