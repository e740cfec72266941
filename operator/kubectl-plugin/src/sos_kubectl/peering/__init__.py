"""Pure part of `kubectl sos peer`: the content of an invitation."""
