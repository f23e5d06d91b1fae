"""What is told of a store without a mount: what is in it (info), and whether it is whole (check)."""
