"""Pure views: documents in, lines out.

`overview`   `status`: one line per object, then messages of those not ready
`network`    `topology` and `flows`
`trace`      `trace`: step by step, with reasons
"""
