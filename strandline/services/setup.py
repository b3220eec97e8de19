"""Preparation of a new deployment before its services start. Idempotent: `python -m strandline.services.setup`.

It brings the ledger's tables up to date, and checks that Kafka accepts records and Elasticsearch responds. It creates no topic
and no template, because applying a document does. A deleted topic must not be recreated empty.
"""

from __future__ import annotations

import sys

import structlog

from strandline.core.errors import StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.log.admin import KafkaAdmin
from strandline.results.elasticsearch_client import request

logger = structlog.get_logger()

_TIMEOUT_S = 30.0


def set_up(settings: Settings) -> None:
    """Prepare the deployment. Raises StrandlineError, which names the server that doesn't respond."""
    Ledger.migrate(settings.ledger_url)
    logger.info("the ledger's tables are up to date", action="ledger_migrated")
    KafkaAdmin(settings.kafka_bootstrap, timeout_s=_TIMEOUT_S).check_writable()
    logger.info("Kafka accepts records", action="kafka_checked")
    request(settings.elasticsearch_url, "GET", "/_cluster/health", timeout_s=_TIMEOUT_S)
    logger.info("Elasticsearch responds", action="elasticsearch_checked")


def main() -> int:
    """Main function of the process. Return its exit code, 1 with a message if a server is missing."""
    try:
        settings = Settings.read()
        configure_logs(as_json=settings.log_json)
        set_up(settings)
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
