"""The tasks of a batch on Spark: its session, its jobs, and which executors get tasks."""
