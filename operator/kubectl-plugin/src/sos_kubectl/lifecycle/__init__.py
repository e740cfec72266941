"""Pure parts of the commands that change a cluster.

`drain`     agents that a name selects, and the progress of draining them: by a controller's list of agents, or by the agents' own answers
            at sites without bridges
`removal`   the Job that uninstalls a release, and the objects that `--purge` deletes
"""
