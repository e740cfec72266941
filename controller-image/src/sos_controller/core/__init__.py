"""The pure part of the controller: no sockets, clocks, randomness, files, threads, logging or framework.

`engine.Engine.handle(event, now)` is its only door; everything it wants done comes back as a list of commands.
"""
