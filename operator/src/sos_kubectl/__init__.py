"""`kubectl sos`: what the SOS objects of a cluster say, and what a controller sees, for people at a terminal.

Views are pure functions from what was read to tables and verdicts; `source` is the only module that talks to anybody.
"""
