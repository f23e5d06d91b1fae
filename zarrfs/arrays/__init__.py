"""The arrays of a hierarchy: their chunks, read and written. Async: it asks stores for values. Knows no nodes and no views."""
