"""The daemon: a store, its tree and the kernel joined, and how that begins and ends."""
