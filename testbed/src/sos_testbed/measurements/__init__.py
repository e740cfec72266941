"""Measurements over a running lab.

`measure` runs unmodified programs and computes the capacity of a wire; `demo` implements `make demo` and `make bench`, `balance`
implements `bench-balance`. `capture` and `downloads` run as programs inside a namespace.
"""
