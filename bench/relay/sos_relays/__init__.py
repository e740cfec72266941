"""The `relay` benchmark: CPU cost of relaying a byte (bench/relay/README.md)."""
