"""Chunk grids of the final v3, one file a grid: between the JSON of ``chunk_grid`` and `zarrfs.model.chunk_grid.ChunkGrid`."""
