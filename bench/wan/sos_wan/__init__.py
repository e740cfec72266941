"""The `wan` benchmark: SOS beside other ways to fill a long fat network (bench/wan/README.md)."""
