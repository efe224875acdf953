"""The Flink glue: the keyed fold and the adapters around it."""
