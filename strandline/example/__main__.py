"""The example on a running platform: `python -m strandline.example`. For containers."""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from strandline.core.errors import StrandlineError
from strandline.example.run import SPEED_DEFAULT, Servers, show_example, stop_signals
from strandline.services.client import TOKEN_VARIABLE


def main() -> None:
    """Run the example on the platform that the options name. Exit code 0 if stopped, 1 with a message if a part failed
    or no result arrived.
    """
    parser = argparse.ArgumentParser(prog="python -m strandline.example", description=__doc__)
    parser.add_argument("--url", default=os.environ.get("STRANDLINE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--ingest-url", default=os.environ.get("STRANDLINE_INGEST_URL", "http://127.0.0.1:8081"))
    parser.add_argument("--mqtt-url", default=os.environ.get("STRANDLINE_MQTT_URL", "mqtt://127.0.0.1:1883"))
    parser.add_argument("--udp-host", default=os.environ.get("STRANDLINE_UDP_HOST", "127.0.0.1"))
    parser.add_argument(
        "--mqtt-health-url", default=os.environ.get("STRANDLINE_MQTT_HEALTH_URL", "http://127.0.0.1:8084")
    )
    parser.add_argument(
        "--udp-health-url", default=os.environ.get("STRANDLINE_UDP_HEALTH_URL", "http://127.0.0.1:8085")
    )
    parser.add_argument(
        "--elasticsearch-url", default=os.environ.get("STRANDLINE_ELASTICSEARCH_URL", "http://127.0.0.1:9200")
    )
    parser.add_argument("--speed", type=float, default=SPEED_DEFAULT)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    servers = Servers(
        given.url,
        given.ingest_url,
        given.mqtt_url,
        given.udp_host,
        0,
        {"mqtt": given.mqtt_health_url, "udp": given.udp_health_url},
        given.elasticsearch_url,
        option=f"--url {given.url}",
        logs="the logs of the control service and its runners",
        require_running=lambda: None,  # compose watches the servers
        token=os.environ.get(TOKEN_VARIABLE) or None,
    )
    try:
        with stop_signals() as stop:
            code = show_example(servers, given.speed, Console(), given.seconds, stop)
    except StrandlineError as error:
        print(error, file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
