"""What chunks/ and zarr3/ share: each node of the hierarchy is a folder."""
