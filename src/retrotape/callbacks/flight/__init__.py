"""The flight recorder: what led to a crash of a training, on disk, and a tape of the step that failed."""
