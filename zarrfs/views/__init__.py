"""Views: ways to show a store as a tree of files. One file a view; see `zarrfs.views.base`."""
