"""The Spark data source over the native protocol. Users import `pyspark_millrace`."""
