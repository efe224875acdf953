"""One module or function at a time, in process."""
