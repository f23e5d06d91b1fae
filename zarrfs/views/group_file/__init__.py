"""Files of groups: a view for each `zarrfs.containers.base.GroupContainer`."""

from zarrfs.views.group_file.view import PLUGIN

__all__ = ["PLUGIN"]
