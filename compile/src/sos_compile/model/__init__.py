"""Frozen values that the steps of a compilation hand to each other. No step's logic.

`World` goes in, `Network` is the resolved configuration of all objects, document formats and `Compiled` come out:

`world`       input and output of `compile_world`: World, Settings, Observed, Allocations, Facts, Compiled
`resources`   one admitted object of each kind, parsed: units in names, addresses as addresses
`network`     the resolved network: placed sites, nodes, agents, services, balances
`formats`     controller-config, node-config and agent-config as pydantic models; source of spec/*.schema.json
`problem`     a problem of an object: reason, field, message, remedy
`memo`        results kept from one compilation to the next; changes the time taken, never the result
`addresses`   addresses, prefixes and port ranges as text
"""
