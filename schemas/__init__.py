"""The wire format: events, decisions, their codec and their topics."""
