"""Shared by all commands; knows none of them.

`source`    answers from the API server by way of kubectl, or from a controller's URL; the only module that asks either
`names`     names of objects that the operator makes
`signals`   Ctrl-C during commands that create objects: interrupted once, then cleaned up
`tables`    tables for a terminal of 100 columns
"""
