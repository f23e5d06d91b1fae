"""Shared parts of chunks/ and zarr3/: each node of the hierarchy is a folder."""
