"""Drain agents, and remove what an operator created. The first four modules are pure.

`drain`         agents that a name selects, and the progress of draining them: by a controller's list of agents, or by the agents' own
                answers at sites without bridges
`removal`       the Job that uninstalls a release, and the objects that `--purge` deletes
`record`        the Job of a release that was deleted without its hooks
`remains`       nodes that have a bridge while no operator runs
`removal_job`   runs the Job
`abandonment`   removes without the Job
"""
