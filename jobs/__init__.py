"""Flink jobs, one module each, and what wires and operates them."""
