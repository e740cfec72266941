"""The `matrix` benchmark: never worse than plain TCP, nor than one path alone (bench/matrix/README.md)."""
