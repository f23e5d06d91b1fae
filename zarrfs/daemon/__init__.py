"""The daemon: connects a store, its tree and the kernel; its start and its end."""
