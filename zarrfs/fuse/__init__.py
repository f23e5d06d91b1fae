"""Kernel side: inodes, handles, requests. The only importer of pyfuse3."""
