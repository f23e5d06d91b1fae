"""The content of Zarr metadata as pure values: no store, no codec, no clock. Sizes and indices are Python integers throughout."""
