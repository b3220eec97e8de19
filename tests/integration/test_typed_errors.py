"""An error of a package crosses a real Spark session with its kind."""

import pytest
from pyspark.errors import PySparkException

from strandline.core.errors import TransientError
from strandline.core.portable_errors import typed_for_driver
from strandline.processing.spark.errors import typed_error


@pytest.mark.guarantee("G982")
def test_an_error_of_a_package_reaches_the_driver_with_its_kind(spark):
    class Busy(TransientError):
        def __init__(self, host, seconds):
            super().__init__(f"{host} is busy\nfor {seconds} s")

    def raising(key, frame):
        with typed_for_driver():
            raise Busy("db", 7)

    rows = spark.range(1).groupBy("id").applyInPandas(raising, "id long")
    with pytest.raises(PySparkException) as raised:
        rows.collect()
    error = typed_error(raised.value)
    assert (type(error), str(error)) == (TransientError, "db is busy for 7 s")
