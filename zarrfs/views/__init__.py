"""Views: presentations of a store as a tree of files. One file or folder for each view; see `zarrfs.views.base`."""
