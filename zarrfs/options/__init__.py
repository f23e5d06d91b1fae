"""Options of a mount and the values derived from them."""
