"""The `headrace` command as a user runs it."""
