"""Benchmarks: `make bench`. Each figure stands beside a reference that was measured in the same run."""
