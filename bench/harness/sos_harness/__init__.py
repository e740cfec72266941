"""Harness of the benchmarks in bench/{wan,matrix,relay,short,sessions}, whose folders only have their cases.

| module | role |
|---|---|
| `scenario` | scenarios and schemes: the types of a benchmark's cases |
| `loop` | arguments, the loop over measurements, result files; calls the `measure` function of a benchmark |
| `site` | a running network of a scenario, and the programs in it |
| `network`, `agents` | steps that build the network; configuration of the two agents |
| `relays` | connections from client to server: direct, or through agents, haproxy or socat |
| `transfer` | bulk downloads with every scheme; `transfer_tool` is their server and client |
| `load_run` | many simultaneous connections; `load_client` is their server and client |
| `results/` | program output -> values -> summaries -> tables; the run log |
"""
