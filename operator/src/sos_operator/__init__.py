"""Kubernetes operator that makes a cluster match its SOS objects."""
