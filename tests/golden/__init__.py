"""Recorded bytes and outputs that must not change."""
