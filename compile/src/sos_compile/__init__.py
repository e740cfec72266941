"""Custom resources in; controller, node and agent configuration, manifests and problems out."""
