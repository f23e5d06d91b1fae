"""Command line of zarrfs, and the helpers of mount(8)."""
