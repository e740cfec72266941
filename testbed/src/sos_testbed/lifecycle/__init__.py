"""A lab from up to down.

`lab` is the entry: it compiles custom resources (`declare`), carries the steps of `core` out with a journal of undos (`runner`,
`process`), writes where every part is reached (`endpoints`) and waits until the parts have found each other (`northbound`, the
controllers' API). `status` describes a lab that is up, `faults` breaks and mends it.
"""
