"""The archive that `report` writes.

`archive`   tar.gz, every member scrubbed before it is added
`scrub`     removes keys, tokens and the content of Secrets
"""
