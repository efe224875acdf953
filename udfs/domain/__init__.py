"""Pure decisions, one package a capability: no Flink, no clock, no randomness, no I/O."""
