"""What a mount is asked to be: its options, and what follows from them."""
