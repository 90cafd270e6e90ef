"""A tape as a file: the container, what is checked before it is believed, saving, loading, isolation."""
