"""The loop of a batch, in the driver: plan what is new, run it, commit it. It knows no Spark."""
