"""Spark's own Kafka connector, for the side of plain Spark."""

from __future__ import annotations

from pathlib import Path

from strandline.services.embedded.artifacts import Artifact, find_java, provide


def _module(organisation: str, name: str, revision: str) -> str:
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default" transitive="false"/>'
    )


CONNECTOR = Artifact(
    name="spark-kafka-connector-4.2.0",
    dependencies=(
        _module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0")
        # Published up to 4.0.0; the connector needs it to start, and that version works with it.
        + _module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0")
        + _module("org.apache.kafka", "kafka-clients", "3.9.2")
        + _module("org.apache.commons", "commons-pool2", "2.13.1")
    ),
    download_bytes=9_936_288,
    sums=Path(__file__).with_name("spark-kafka-connector-4.2.0.txt"),
)


def connector_jars(cache_dir: Path) -> list[Path]:
    """Return the connector's jars, fetched into the cache on first use and checked. Raises StackError."""
    return sorted(provide(CONNECTOR, cache_dir, find_java(), lambda fetched_bytes: None).glob("*.jar"))
