"""Files that are replaced as a whole, and the clean-up after processes that were killed while they wrote some."""

from retrotape.io._replace import Replacement, replace_file, sweep, sync_directory

__all__ = ["Replacement", "replace_file", "sweep", "sync_directory"]
