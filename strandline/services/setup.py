"""What a new deployment needs before its services start; may run again at any time: `python -m strandline.services.setup`.

Brings the ledger's tables up to date, and makes sure that Kafka takes records and Elasticsearch answers. It makes no topic and
no template: applying a document does. A topic that is gone must not come back empty.
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
    """Raises StrandlineError, which says what does not answer."""
    Ledger.migrate(settings.ledger_url)
    logger.info("the ledger's tables are up to date", action="ledger_migrated")
    KafkaAdmin(settings.kafka_bootstrap, timeout_s=_TIMEOUT_S).check_writable()
    logger.info("Kafka takes records", action="kafka_checked")
    request(settings.elasticsearch_url, "GET", "/_cluster/health", timeout_s=_TIMEOUT_S)
    logger.info("Elasticsearch answers", action="elasticsearch_checked")


def main() -> int:
    """The main function of the process: returns its exit code, 1 with one sentence where something is missing."""
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
