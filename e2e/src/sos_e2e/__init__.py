"""Helpers of the end-to-end tests on a kind cluster.

| module | role |
|---|---|
| `settings`, `run` | the environment's settings; commands, and waits with a deadline |
| `pages`, `reader` | shell blocks of README and docs; a shell that runs them byte for byte |
| `kube` | kubectl and helm with the suite's own kubeconfig |
| `environment` | builds the test environment: cluster, cables, images |
| `observation` | generates traffic and observes its effect: transfers, load, resources over time, leftovers on nodes |
"""
