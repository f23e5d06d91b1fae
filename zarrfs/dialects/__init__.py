"""Dialects: the layouts of metadata documents of all Zarr versions. Pure: documents in, values out; the caller does the I/O."""
