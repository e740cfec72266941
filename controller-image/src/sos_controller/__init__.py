"""OpenFlow controller of SOS: a pure core that decides (`core/`) and thin edges that speak to switches, files and HTTP."""

__version__ = "0.1.0"
