"""The `relay` benchmark: cost of relaying a byte (bench/relay/README.md)."""
