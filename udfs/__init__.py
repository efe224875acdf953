"""What the jobs run: decisions, the Flink glue around them, and model runtimes."""
