"""Containers: file formats that hold a whole array (later: a whole hierarchy) as one file."""
