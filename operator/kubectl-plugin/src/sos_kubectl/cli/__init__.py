"""Parts of the command line that commands share.

`options`     options, the values that they select, and the output
`completion`  shell completion, as kubectl's completion queries it
"""
