"""The `matrix` benchmark: SOS is never worse than plain TCP or than SOS over one path alone (bench/matrix/README.md)."""
