"""Files that the controller reads, and state that it keeps between runs.

`__main__` calls all modules at start; `reload` calls `key_files` and `tls_folder` again each second; `app` calls `config` for documents
that arrive over the API.

- `config`: strict parser of the controller-config document
- `key_files`: key folder and token files
- `tls_folder`: certificate, key and CA certificates for connections of switches
- `identity`: epoch, boot id and seeds of this run
- `check`: `--check` of controller-config documents and custom resources
"""
