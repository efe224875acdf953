"""Invariants under Hypothesis, each against an oracle of its own."""
