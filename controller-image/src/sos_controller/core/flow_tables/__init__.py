"""Flow tables of datapaths: desired entries, and the space for them.

All parts of the engine set groups of entries in `programmer`, which compares them with the acknowledged entries and sends the difference.

- `programmer`: desired, sent and acknowledged entries per datapath; `batches`: barriers shared by several sessions
- `budget`: groups of entries that fit into a datapath's tables, by rank; `bounded_datapath`: the groups of one such datapath
"""
