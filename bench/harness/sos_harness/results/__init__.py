"""From program output to tables. Pure.

Order of calls: program output -> `parse` -> values -> `figures` -> rows, which the loop keeps in the `run_log` -> summaries -> `tables`.

| module | role |
|---|---|
| `parse` | parsers of program output and kernel counters |
| `figures` | one transfer as one row, rows of several runs as medians |
| `run_log` | rows of the .jsonl, and the list of missing measurements |
| `tables` | summaries as text |
"""
