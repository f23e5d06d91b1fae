"""Stores: backends that map keys to values. They do not depend on chunks, nodes or files."""
