"""Metrics of notices for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline.services.jobs.notices import NoticeSummary


class NoticeMetrics(Collector):
    """Metrics of all notices at one moment."""

    def __init__(self, notices: list[NoticeSummary]) -> None:
        self._notices = notices

    def collect(self) -> Iterable[Metric]:
        problems = GaugeMetricFamily("strandline_notice_open_problems", "Problems that are not over", labels=["notice"])
        unsent = GaugeMetricFamily(
            "strandline_notice_unsent_messages", "Messages that no receiver has confirmed yet", labels=["notice"]
        )
        failing = GaugeMetricFamily(
            "strandline_notice_is_failing", "1: the last attempt of an unsent message failed", labels=["notice"]
        )
        for one in self._notices:
            problems.add_metric([one.name], one.open_problems)
            unsent.add_metric([one.name], one.unsent_messages)
            failing.add_metric([one.name], 1 if one.failing else 0)
        yield from (problems, unsent, failing)
