"""Found by Spark by its name: `spark.read.format("millstream")` works without being registered."""

from millstream.run.datasource import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
