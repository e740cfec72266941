"""`kubectl sos diagnose`: real transfers first, then facts from controller and agents, then findings.

`gather` fills `facts` from a target; `checks` turns facts into findings; `render` prints both. Only `gather` does I/O.

`gather`      transfers, then every status, so that all facts are current
`facts`       facts about two sites
`checks`      findings from facts, in the order of cause
`links`       links that are down or silent
`relevance`   rejected objects that affect the connection in question
`samples`     metrics of agents and controllers
`findings`    every finding, in the order of cause
`render`      facts and findings as text and JSON
`routed`      the same steps for sites without bridges: agents, streams and reasons, no transfers
"""
