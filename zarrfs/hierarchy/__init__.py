"""Nodes of a store: their positions, their documents and changes to them. Async: it reads documents from stores."""
