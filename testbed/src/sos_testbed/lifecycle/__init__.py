"""Life cycle of a lab.

`lab` is the entry. It compiles custom resources (`declare`), issues certificates (`certificates`), executes the steps of `core` with a
journal of undos (`runner`, `process`), writes the endpoints of all parts to lab.json (`endpoints`), and waits until the parts are
connected, through the controllers' API (`northbound`). `status` describes a running lab; `faults` injects and repairs faults. `time_factor`
multiplies all time limits on slow machines.
"""
