"""All checks of a deployment, and the checks of its external servers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from strandline.core.settings import Settings
from strandline.ingest.gateway.contract import StackServers
from strandline.ingest.registry import installed_gateways
from strandline.results.sinks.registry import installed_sinks
from strandline.services.doctor.elasticsearch import check_elasticsearch
from strandline.services.doctor.finding import Check
from strandline.services.doctor.gateways import check_gateway
from strandline.services.doctor.kafka import check_kafka
from strandline.services.doctor.ledger import check_ledger
from strandline.services.doctor.schema_registry import check_registry
from strandline.services.doctor.sinks import check_sink, subject_of
from strandline.services.doctor.sql_sources import check_sql_sources

DEADLINE_S = 60.0
"""Deadline in seconds of the checks of all subjects, which run in parallel. Each request has a shorter timeout."""


def server_checks(settings: Settings, servers: StackServers | None) -> Mapping[str, Check]:
    """Return the check of each server of a deployment. `servers`: servers of an embedded stack; None outside of one."""
    checks: dict[str, Check] = {
        "kafka": partial(check_kafka, settings),
        "elasticsearch": partial(check_elasticsearch, settings),
        "ledger": partial(check_ledger, settings.ledger_url),
    }
    for gateway in installed_gateways().values():
        if gateway.has_checks(servers):
            checks[gateway.part] = partial(check_gateway, gateway, servers)
    if settings.schema_registry_url is not None:
        checks["registry"] = partial(check_registry, settings)
    for name, sink in installed_sinks().items():
        if sink.has_server(settings):
            checks[subject_of(name, sink)] = partial(check_sink, name, sink, settings)
    if settings.sql_sources:
        checks["sql sources"] = partial(check_sql_sources, settings)
    return checks
