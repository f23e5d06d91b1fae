"""Life of a mount seen from outside of its daemon: before, start, end, and dead mounts."""
