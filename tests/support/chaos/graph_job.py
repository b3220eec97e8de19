"""The graph job: one reading of the stream, branches with different keys, and a lookup that changes while it runs.

Sessions by site, windows that count by client, a join of two branches of records, and short windows by what the lookup says.
"""

from __future__ import annotations

from functools import partial

from tests.support.chaos.checking.graph.lookups import LOOKUP, rows_of
from tests.support.chaos.checking.graph.pipeline import (
    COUNT,
    COUNTED,
    LEFT_BUSY,
    PAIRS,
    PLANS,
    RIGHT_BUSY,
    SESSIONS,
    STAGES,
    graph,
)
from tests.support.chaos.checking.pace import DELAY_MS, IDLE_MS, MAX_AHEAD_MS, Pace
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.more_jobs import ChaosJob

_AGGREGATES = """\
        n: count(*)
        load: avg(load)
        peak: max(power)
        total: sum(total)
        cost: sum(cost)
        bill: sum(busy * tariff)
"""
_PIPELINE = """\
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: {delay}, idle_timeout: {idle}, max_ahead: {ahead}}}
steps:
  - enrich: {{lookup: {lookup}, key: site, add: [tariff], optional: true}}
  - derive: {{load: power / rated, total: count * {times}}}
    name: loaded
  - where: load < {load_below}
    name: chosen
  - window:
      name: {sessions}
      session: {{gap: {short}, max: {long}}}
      by: [site]
      aggregate:
{aggregates}\
    emit: [{{elasticsearch: {job}-{sessions}}}, {{stream: {job}-{sessions}}}]
  - window:
      name: {counted}
      count: {{size: {count}, max: {long}}}
      by: [client]
      aggregate:
        latest: last(count)
{aggregates}\
    from: chosen
    emit: [{{elasticsearch: {job}-{counted}}}]
  - where: busy = {left_busy}
    from: chosen
    name: asked
  - where: busy = {right_busy}
    from: chosen
    name: answered
  - join:
      name: {pairs}
      left: asked
      right: answered
      on: [client]
      within: {{before: {before}, after: {short}}}
      type: left
      add:
        sent: left.id
        began: left.ts
        cost: left.cost
        total: left.total
        tariff: left.tariff
        answered: right.id
        ended: right.ts
        tariff_then: right.tariff
    emit: [{{elasticsearch: {job}-{pairs}}}]
  - enrich: {{lookup: {lookup}, key: site, add: [plan]}}
    from: loaded
  - window:
      name: {plans}
      tumbling: {short}
      by: [site, plan]
      aggregate:
{aggregates}\
    emit: [{{elasticsearch: {job}-{plans}}}]
"""


def graph_job(name: str, stream: str) -> ChaosJob:
    return ChaosJob(name, stream, STAGES, partial(graph, stream=stream), results=f"{name}-{SESSIONS}")


def lookup_document(version: int) -> str:
    """A version of the lookup, as YAML."""
    head = f"lookup: {LOOKUP}\nschema: {{site: string, tariff: long, plan: string}}\nkey: site\nrows:\n"
    rows = [
        f"  - {{site: {site}, tariff: {row['tariff']}, plan: {row['plan']}}}\n"
        for site, row in rows_of(version).items()
    ]
    return head + "".join(rows)


def graph_document(job: ChaosJob, pace: Pace, version: int) -> str:
    """A version of the job, as YAML. More fields may follow."""
    this = Version(version)
    return _PIPELINE.format(
        job=job.name,
        stream=job.stream,
        lookup=LOOKUP,
        sessions=SESSIONS,
        counted=COUNTED,
        pairs=PAIRS,
        plans=PLANS,
        aggregates=_AGGREGATES,
        count=COUNT,
        left_busy=LEFT_BUSY,
        right_busy=RIGHT_BUSY,
        short=f"{pace.short_ms}ms",
        long=f"{pace.long_ms}ms",
        before=f"{pace.short_ms // 5}ms",
        delay=f"{DELAY_MS}ms",
        idle=f"{IDLE_MS}ms",
        ahead=f"{MAX_AHEAD_MS}ms",
        load_below=this.load_below,
        times=this.times,
    )
