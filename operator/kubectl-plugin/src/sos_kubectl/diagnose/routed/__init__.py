"""`kubectl sos diagnose` between sites without bridges: the agents' own answers and counters. No traffic is sent.

No controller knows the sessions of these sites, so no transfer could be proven to be accelerated.

`selection`   pairs of sites to diagnose this way
`facts`       agents of two sites, their answers and counters, and the paths between them
`gather`      queries the agents; the only module with I/O
`checks`      findings and verdict
`render`      facts and findings as text and JSON
"""
