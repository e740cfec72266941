"""Measurements over a running lab.

`measure` runs unmodified programs and computes the capacity of a wire; `demo` implements `make demo` and `make bench`, `balance`
implements `bench-balance`. `downloads` is a program that runs inside a namespace; `capture` is a library for such programs.
"""
