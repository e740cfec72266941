"""Modules that all commands share; they import no command.

`source`    answers from the API server through kubectl, or from a controller's URL; the only module that queries them
`names`     names of objects that the operator creates
`labels`    labels by which objects are selected
`signals`   Ctrl-C during commands that create objects: the first Ctrl-C interrupts, then the clean-up runs
`tables`    tables for a terminal of 100 columns
"""
