"""Admission: validate and parse every raw object once.

The compiler first calls `objects.collect`, which admits every object as the API server would, and parses it.

`load`              reads custom resources and CRDs from YAML files; the only module that reads files
`schema`            defaults, structural schema, list types and CEL rules of the CRDs
`cel_rules`         evaluates x-kubernetes-validations
`objects`           collects the world's objects by kind and key; duplicates and invalid objects become problems
`typed_objects`     the typed form of an admitted object of each kind (model.resources)
`verdicts`          problems of a compilation, by object
`fault_isolation`   finds the objects that make a compilation raise, and compiles without them
"""
