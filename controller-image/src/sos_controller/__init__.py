"""OpenFlow controller of SOS: a pure core that decides, and thin edges for switches, files and HTTP.

`__main__` reads arguments (`cli`), starts the listeners and loops, and connects the edges. On each event from a switch, `app` calls
`core.engine.Engine.handle` and executes the returned commands.

- `openflow/`: OpenFlow messages, and the connection to a switch; the only package that imports Ryu
- `api/`: northbound API and metrics
- `files/`: configuration, keys, tokens, identity, and `--check`
- `mastership`: role of this process among the replicas of a controller
- `reload`: rereads keys and tokens each second
- `logs`, `audit`: log lines, and one record for each session that has ended
- `core/`: all decisions
"""

__version__ = "0.1.0"
