"""`python -m benchmarks.ingest`: what each gateway takes, what a record costs it, and how soon it acknowledges.

Starts a Kafka and the gateways of its own in a temporary directory; prints a table and writes it to benchmarks/RESULTS.md.
With `--quick` a short run whose figures mean little, and which writes only where `--output` says.
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
"""Name -> the function that measures a protocol over a stack whose Kafka runs and whose streams are registered."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run: does it work, is nothing lost")
    parser.add_argument(
        "--feeds", default=",".join(FEEDS), help=f"which, separated by commas (default {','.join(FEEDS)})"
    )
    parser.add_argument("--seconds", type=float, help="how long each feed is measured (default 15; 2 with --quick)")
    parser.add_argument(
        "--output", type=Path, help=f"where the table goes (default {RESULTS.name}; with --quick nowhere)"
    )
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
    """Start Kafka, and register the streams that the feeds fill."""
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

Records of 121 bytes into a stream of 4 partitions; one Kafka node, the gateway and the load share this machine. A record
counts when it was acknowledged, which comes after Kafka's confirmation with `acks=all` and the read-back; the number of
records in the topic afterwards equals the number acknowledged. {seconds:g} s at full load (each connection sends on when it is
answered), then {seconds:g} s at half of what that reached, evenly paced, where the latency of a request counts from when it
was due. CPU time is user and system time of the gateway's whole process tree. *The load alone* is what the same load
reaches against a program that answers at once: where it is well above the gateway's rate, the load is not what limits it.
*Cores used by others* is what programs that have nothing to do with the measurement took of this machine meanwhile; with
more than a tenth of a core, rates are lower and costs and latencies higher than the gateway's own. UDP:
{udp_feed.RATE:,} datagrams/s are sent, and each is in the topic or counted as lost, to the exact number.

{table}
"""


if __name__ == "__main__":
    main()
