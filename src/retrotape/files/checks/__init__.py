"""What is checked before an op of a file runs."""
