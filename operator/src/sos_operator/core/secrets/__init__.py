"""Secrets: master keys, the key folders derived from them, and bearer tokens of controllers.

`Reconciler` calls `secrets` for the Secrets that must exist, then the three rotations, each of which takes several passes.

`keys`             the key Secrets and their content (derivation: `sos_compile.keys`)
`secrets`          random Secrets, created once; derived Secrets, rendered in every pass
`key_rotation`     new master key: announced, in use, old key removed
`certificates`     the CA of OpenFlow channels; TLS folders of controllers and sites, rendered in every pass
`ca_rotation`      new CA: trusted first, then certifying, old CA removed
`token_rotation`   new bearer token of a controller: accepted first, then in use, old token removed
"""
