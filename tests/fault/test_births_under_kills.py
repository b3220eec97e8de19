"""A campaign over Sparkplug: runs are killed, and each one that follows reads records whose births lie before those it reads."""

from __future__ import annotations

import random
import time

import pytest

from tests.fault.campaigns import CAMPAIGNS
from tests.support.audit_lab import AuditLab
from tests.support.chaos.dump import TABLES, query
from tests.support.chaos.states import missed, times_reached
from tests.support.sparkplug_floor import EXAMPLE, JOB, STREAM, EdgeNode, Floor, found, send


@pytest.mark.guarantee("G752")
@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_runs_that_are_killed_replay_births_and_every_result_is_right(audit_lab: AuditLab) -> None:
    lab, chance, campaign = audit_lab, random.Random(7), CAMPAIGNS["births"]
    lab.apply(EXAMPLE.read_text())
    nodes = [EdgeNode(f"n{number}", chance) for number in range(6)]
    floor = Floor(chance, (int(time.time()) - 1_800) * 1_000 // 60_000 * 60_000, nodes)
    send(lab, ((node, *one) for node in nodes for one in floor.births(node)))
    send(lab, floor.data(3_000, births=True))
    with lab.running(JOB, STREAM):
        pass
    for point in campaign.failpoints:
        send(lab, floor.data(700, births=chance.random() < 0.5))
        lab.run_killed_at(JOB, point)
    send(lab, floor.data(700, births=False))
    lab.drain(JOB)
    assert found(lab) == floor.expected()
    lab.require_clean(JOB)
    tables = {
        table: query(lab.settings.ledger_url, f"SELECT * FROM {table} WHERE job = '{JOB}' ORDER BY {column}")
        for table, column in TABLES.items()
    }
    assert missed(campaign.states, times_reached([tables], {})) == []
