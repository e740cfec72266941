"""Check of the commands in Markdown pages, run by scripts/blocks.py.

`pages`     fenced blocks, runnable blocks and commands in backticks of a page
`shell`     a block's syntax, and its simple commands
`programs`  selects the checker of a command by its program
`clicks`    `kubectl sos`, `./lab`: their own parsers, without executing
`helped`    programs whose options are read from `--help`
`options`   options and operands of a command by tables of options
`kubectl`   verbs, kinds and files of kubectl
`helm`      charts, and values against the chart's schema
`makefile`  targets and variables of `make`
`paths`     files of the repository, keys of labels and annotations
`registry`  runnable blocks, each with the suite that runs it

`pages`, `clicks`, `makefile` and `registry` are pure; `shell` and `helped` start programs, the rest reads files of the repository.
"""
