"""The tree of files that the kernel side serves, independent of the kernel: no errno, no inode number and no Zarr."""
