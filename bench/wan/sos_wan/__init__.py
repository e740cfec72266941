"""The `wan` benchmark: SOS beside other ways to fill a long fat network (bench/wan/README.md).

- `cases`: scenarios, and the schemes compared in each
- `bench`: runs them by `sos_harness`; `report`: their tables
"""
