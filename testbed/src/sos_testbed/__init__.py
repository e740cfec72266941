"""Hosts, switches, agents and emulated links in network namespaces of one machine."""
