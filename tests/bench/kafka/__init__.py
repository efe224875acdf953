"""Kafka to Kafka: the real admission job on the local profile, beside other ways to do its work on the same broker.

`throughput`: events a second of a log filled beforehand. `latency`: from a prompt to its decision under a steady load.
`savepoint`: savepoint and restore with many tenants. Each has its own cluster, on free ports, gone afterwards.
"""
