"""Shared by all commands; imports none of them.

`source`    answers from the API server through kubectl, or from a controller's URL; the only module that queries them
`names`     names of objects that the operator makes
`signals`   Ctrl-C during commands that create objects: the first interrupts, then the clean-up runs
`tables`    tables for a terminal of 100 columns
"""
