"""Targets of `diagnose`, `drain`, `trace` and `report`: a cluster or a lab, and the transfers run there.

`cluster`         a cluster: probe pods are created, used and deleted
`lab`             a lab of ./lab, by its lab.json
`agents`          agent-configs and agents of a cluster, through the API server
`agent_configs`   agents with their agent-configs and answers, as values
`probe_pod`       manifests of probe pods, and their addresses
`traffic`         runs sos-probe at two hosts
`transfer`        endpoints of a transfer and its result, as values
`ports`           ports that a service covers, and ports without a service
"""
