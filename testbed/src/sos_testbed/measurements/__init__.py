"""Measurements over a lab that is up.

`measure` runs unmodified programs and computes what a wire carries; `demo` is `make demo` and `make bench`, `balance` is
`bench-balance`. `capture` and `downloads` run as programs inside a namespace.
"""
