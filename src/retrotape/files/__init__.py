"""A tape as a file: the container, the checks before an op runs, saving, loading, isolation."""
