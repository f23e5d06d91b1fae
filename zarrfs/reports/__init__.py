"""Reports on a store without a mount: its content (info), and its integrity (check)."""
