"""Views: ways to show a store as a tree of files. One file or folder a view; see `zarrfs.views.base`."""
