"""The hierarchy of nodes in a store, and the chunks of its arrays. Async: it asks stores for documents and values."""
