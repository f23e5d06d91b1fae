"""The kernel's side: inodes, handles, requests. The only importer of pyfuse3."""
