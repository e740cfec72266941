"""Pure views that format documents as lines.

`overview`   `status`: one line per object, then messages of objects that are not ready
`network`    `topology` and `flows`
`trace`      `trace`: step by step, with reasons
"""
