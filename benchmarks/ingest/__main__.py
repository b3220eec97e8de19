"""`python -m benchmarks.ingest`: throughput, cost per record, and latency of acknowledgements of each gateway.

Starts its own Kafka and gateways in a temporary directory, prints a table, and writes it to benchmarks/RESULTS.md. With
`--quick`, a short run whose figures mean little. It writes only to the file of `--output`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.ingest import http_feed, mqtt_broker_feed, mqtt_listener_feed, udp_feed
from benchmarks.ingest.results import HEADER, Measured
from benchmarks.ingest.work import stream_texts
from benchmarks.report import RESULTS, machine_text, markdown, put_part, show, written_by
from benchmarks.servers import new_stack
from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.topics import Topics
from strandline.services.embedded.stack import Stack

FEEDS: dict[str, Callable[[Stack, float, Console], list[Measured]]] = {
    "http": http_feed.measure,
    "mqtt-listener": mqtt_listener_feed.measure,
    "mqtt-broker": mqtt_broker_feed.measure,
    "udp": udp_feed.measure,
}
"""Name -> function that measures a protocol with a stack. Its Kafka must run, and its streams must be registered."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a short run to check that everything works and nothing is lost"
    )
    parser.add_argument(
        "--feeds", default=",".join(FEEDS), help=f"names of feeds, separated by commas (default {','.join(FEEDS)})"
    )
    parser.add_argument("--seconds", type=float, help="seconds of each measurement (default 15; 2 with --quick)")
    parser.add_argument("--output", type=Path, help=f"file for the table (default {RESULTS.name}; none with --quick)")
    options = parser.parse_args()
    seconds = options.seconds or (2.0 if options.quick else 15.0)
    console = Console(soft_wrap=True)
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        stack = new_stack(Path(directory) / "ingest", console)
        try:
            _prepare(stack)
            for feed in options.feeds.split(","):
                found += FEEDS[feed](stack, seconds, console)
        finally:
            stack.stop()
    rows = [HEADER, *(one.row() for one in found)]
    show(rows, "Ingest", console)
    output = options.output or (None if options.quick else RESULTS)
    if output is not None:
        command = "python -m benchmarks.ingest --quick" if options.quick else "make bench-ingest"
        put_part(output, "ingest", _text(command, seconds, markdown(rows)))


def _prepare(stack: Stack) -> None:
    """Start Kafka, and register the streams of the feeds."""
    bootstrap = stack.start_kafka()
    stack.migrate_ledger()
    topics = Topics(bootstrap, replication=1, record_bytes_max=stack.settings.record_bytes_max)
    ledger = Ledger.open(stack.addresses.ledger_url)
    try:
        for text in stream_texts():
            spec = StreamSpec.parse(read_documents(text, "ingest.yaml")[0])
            topics.ensure_stream_topic(spec)
            ledger.put_stream(spec.stream, spec.as_document())
    finally:
        ledger.close()


def _text(command: str, seconds: float, table: str) -> str:
    return f"""\
## Ingest

{written_by(command)}

{machine_text()}

Records of 121 bytes into a stream of 4 partitions. One Kafka node, the gateway, and the load share this machine. A record
counts if it was acknowledged, after Kafka's confirmation with `acks=all` and the read-back. The number of records in the
topic afterwards equals the number of acknowledged records. First {seconds:g} s at full load: each connection sends its next
request after the response. Then {seconds:g} s at half of that rate, evenly paced. There, the latency of a request counts from
its due time. CPU time is user and system time of the gateway's whole process tree. *The load alone* is the rate of the same
load with a program that responds immediately. If it is well above the gateway's rate, the load is not the limit.
*Cores used by others* is the use of this machine by unrelated programs in the same time. If it is more than a tenth of a
core, rates are lower, and costs and latencies higher, than with the gateway alone. UDP: {udp_feed.RATE:,} datagrams/s are
sent, and each is in the topic or counted as lost. The numbers agree exactly.

{table}
"""


if __name__ == "__main__":
    main()
