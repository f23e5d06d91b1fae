"""Dialects: the layouts of metadata documents that Zarr has had. Pure: documents in, values out; the caller does the I/O."""
