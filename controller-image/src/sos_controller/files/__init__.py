"""Files the controller reads, and what it keeps between runs.

`__main__` calls each at start; `reload` calls `key_files` again each second; `app` calls `config` for documents that arrive over the API.

- `config`: strict parser of the controller-config document
- `key_files`: key folder and token files
- `identity`: epoch, boot id and seeds of this run
- `check`: `--check` of controller-config documents and custom resources
"""
