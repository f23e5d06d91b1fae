"""Array chunks: reads and writes of chunks through a store. Async. Independent of nodes and views."""
