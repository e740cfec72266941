"""Harness of the benchmarks in bench/{wan,matrix,relay,short,sessions}, which hold cases only.

| module | role |
|---|---|
| `scenario` | scenarios and schemes: the values that a benchmark's cases are made of |
| `loop` | arguments, the loop over measurements, result files; calls a benchmark's `measure` |
| `run_log` | rows of the .jsonl, and the measurements still missing |
| `site` | a scenario's network while it is up, and programs in it |
| `network`, `agents` | steps that build the network; the two agents' configuration |
| `relays` | ways from client to server: direct, through agents, haproxy or socat |
| `transfer` | bulk downloads by every scheme; `transfer_tool` is their server and client |
| `load_run` | many connections at once; `load_client` is their server and client |
| `parse`, `figures`, `tables` | program output -> values -> summaries -> tables |
"""
