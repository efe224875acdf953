"""What outlives a deploy: names, numbers, settings, formats."""
