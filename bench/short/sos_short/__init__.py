"""The `short` benchmark: short requests and short connections (bench/short/README.md)."""
