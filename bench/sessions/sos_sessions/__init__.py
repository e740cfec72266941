"""The `sessions` benchmark: many sessions at one pair of agents (bench/sessions/README.md)."""
