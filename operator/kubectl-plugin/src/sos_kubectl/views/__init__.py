"""Pure views that format documents as lines.

`overview`      `status`: one line per object, then messages of objects that are not ready
`network`       `topology` and `flows`
`trace`         `trace`: step by step, with reasons
`routed_trace`  `trace` between sites without bridges
`agent_state`   one agent of such a site: does it accept sessions, is its configuration in force
`estimate`      `estimate`: rates of plain TCP and SOS from a path's round trip, loss and rate
`versions`      `version`: versions of the workloads of SOS
`pairs`         pairs of such agents, and the paths between them
"""
