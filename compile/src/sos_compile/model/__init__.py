"""Frozen values that the steps of a compilation exchange, without the logic of any step.

The input is `World`, the resolved configuration of all objects is `Network`, and the output is `Compiled` with its documents:

`world`           input and output of `compile_world`: World, Settings, Observed, Allocations, Facts, Compiled
`resources`       typed form of an admitted object of each kind; names of fields contain units
`label_selectors` Kubernetes label selectors
`network`         the resolved network: placed sites, nodes, agents, services, balances
`formats`         controller-config, node-config and agent-config as pydantic models; source of spec/*.schema.json
`site_card`       site cards of this cluster and of peers, and their parser (spec/card.md)
`scalars`         names, numbers and ids with their bounds
`ports`           conflicts among the ports on nodes' own addresses
`problem`         a problem of an object: reason, field, message, remedy
`memo`            results kept for the next compilation; affects the time taken, never the result
`classifier`      number of elements that an agent arms for its services
`addresses`       addresses, prefixes and port ranges as text
"""
