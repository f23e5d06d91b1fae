"""Chunk grids of the final v3, one file each: conversion between ``chunk_grid`` and `zarrfs.model.chunk_grid.ChunkGrid`."""
