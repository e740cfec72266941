"""The `wan` benchmark: SOS compared with other methods to fill a long fat network (bench/wan/README.md).

- `cases`: scenarios, and the schemes of each scenario
- `bench`: definition of the benchmark for `sos_harness`
- `report`: table and chart
"""
