"""The `relay` benchmark: what relaying a byte costs (bench/relay/README.md)."""
