"""zarrfs mounts a Zarr store as a directory."""

__version__ = "0.1.0"
