"""What Zarr metadata means: pure values, no store, no codec, no clock. Sizes and indices are Python integers throughout."""
