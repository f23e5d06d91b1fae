"""Stores: backends that hold values under keys. They have never heard of chunks, nodes or files."""
