"""Models of the three documents of spec/controller-config.md and spec/node-config.md. The compiler builds its documents from these models,
and spec/*.schema.json is generated from them, so that specification, schema and documents cannot differ.

`controller`  controller-config
`node`        node-config
`agent`       agent-config
`shared`      scalars and models of several documents, fields and hash of every document
"""
