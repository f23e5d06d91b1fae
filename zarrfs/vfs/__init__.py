"""The tree of files: what the kernel side needs, without the kernel. Knows no errno, no inode number and no Zarr."""
