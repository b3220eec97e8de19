"""The class that a component names shows its changes of the ledger."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import strandline
from strandline.ledger import roles
from strandline.ledger.ledger import Ledger

ROOT = Path(strandline.__file__).parent


def methods_of(repository: type) -> dict[str, str]:
    """Return public method -> source of one class, without inherited methods."""
    found = {name: one for name, one in vars(repository).items() if inspect.isfunction(one) and name[0] != "_"}
    return {name: inspect.getsource(one) for name, one in found.items()}


@pytest.mark.guarantee("G885")
def test_only_the_control_service_and_the_setup_have_the_whole_ledger() -> None:
    named = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "strandline.ledger.ledger import" in path.read_text()
    }
    control = {"services/control.py", "services/rest/dependencies.py"}
    setup = {"services/embedded/stack.py", "services/setup.py"}
    assert named == control | setup


@pytest.mark.guarantee("G885")
def test_readers_change_nothing() -> None:
    readers = [one for one in Ledger.__mro__ if one.__name__.endswith("Reader")]
    assert roles.LedgerReader in readers and len(readers) >= 10
    writing = [
        f"{one.__name__}.{name}" for one in readers for name, source in methods_of(one).items() if ".writing(" in source
    ]
    assert writing == []


def test_each_method_belongs_to_one_repository() -> None:
    owners: dict[str, list[str]] = {}
    for one in Ledger.__mro__:
        for name in methods_of(one) if one is not object else ():
            owners.setdefault(name, []).append(one.__name__)
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}
    assert max(len(methods_of(one)) for one in Ledger.__mro__ if one is not object) <= 22


@pytest.mark.guarantee(
    "G885",
    "Gateways, audits, planners, runs, the supervisor, and notices have no method for changes of the ledger that "
    "belong to other components.",
    promise="one-leader-and-one-run-write",
)
@pytest.mark.parametrize(
    ("role", "absent"),
    [
        (roles.LedgerReader, ["record_event", "plan_slice", "move_job", "put_stream"]),
        (roles.GatewayLedger, ["put_stream", "create_token", "job", "record_event"]),
        (roles.PlannerLedger, ["commit_checkpoint", "begin_run", "submit_job", "record_event"]),
        (roles.TaskLedger, ["commit_checkpoint", "begin_run", "submit_job"]),
        (roles.RunLedger, ["submit_job", "set_desired", "claim_lease", "raise_floor", "reset_job"]),
        (roles.SupervisionLedger, ["plan_slice", "commit_checkpoint", "submit_job", "raise_floor"]),
        (roles.ApplyLedger, ["plan_slice", "commit_checkpoint", "begin_run", "move_job", "reset_job"]),
        (roles.NoticeLedger, ["put_notice", "create_token", "move_job"]),
    ],
)
def test_a_role_lacks_the_changes_of_others(role: type, absent: list[str]) -> None:
    assert [name for name in absent if hasattr(role, name)] == []
    assert all(hasattr(Ledger, name) for name in absent)
