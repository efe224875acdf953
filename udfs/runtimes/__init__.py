"""Model runtimes, used by operators alone."""
