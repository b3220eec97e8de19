"""For people who have Spark: streams, dead letters and results as DataFrames (`spark.read.format("strandline")`)."""
