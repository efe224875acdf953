"""Whole jobs on Flink's MiniCluster."""
