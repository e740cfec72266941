"""Pure part of the testbed: no I/O, clock, randomness or environment.

`topology` builds a named network from the values of `model`. `realise` converts it to the `steps` that build it, with the web server
of each host (`web`) and one process for each controller (`controllers`); `flows` parses the flow tables of switches.
"""
