"""Pure decisions: no clock, no sockets, no Kubernetes client. Everything here is values in, values out."""
