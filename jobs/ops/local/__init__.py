"""The local profile: a Kafka broker, Postgres and a Flink cluster on this machine, from a checkout."""
