"""Pure part of `kubectl sos peer`: what an invitation contains."""
