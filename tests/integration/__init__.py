"""Jobs against Kafka and Postgres."""
