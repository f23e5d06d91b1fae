"""Codecs: from the elements of a chunk to its stored bytes and back. Plain functions of values: no store, no waiting."""
