"""Northbound API (spec/northbound.md).

`__main__` serves `northbound.Api` over WSGI. GET renders `core.snapshot`; PUT of a configuration goes through `app.Controller.configure`.

- `northbound`: requests, tokens, event stream
- `metrics`: Prometheus metrics
"""
