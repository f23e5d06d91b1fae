"""The nodes of a store: which is where, what its documents say, how they are changed. Async: it asks stores for documents."""
