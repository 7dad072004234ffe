"""Kafka: ranges of offsets to records, and staged results to transactions. No Spark."""
