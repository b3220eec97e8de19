"""The actions that the sources of the console name, compared with the operations of the REST API."""

from __future__ import annotations

from pathlib import Path

from tests.support.console_actions import (
    NOT_IN_THE_PAGE,
    PAGE_ACTIONS,
    READING,
    described_changes,
    direct_requests,
    operations_in_sources,
    role_needed,
)


def test_the_table_has_each_action_that_the_sources_name() -> None:
    """Each dialog names its operation, so an action of the page without an entry fails here."""
    assert operations_in_sources() == {action.operation for action in PAGE_ACTIONS}


def test_requests_without_a_dialog_change_nothing() -> None:
    assert direct_requests() == set(READING)
    offered = {action.operation for action in PAGE_ACTIONS}
    for operation in set(READING.values()) - offered:
        assert role_needed(operation) in ("open", "viewer"), operation


def test_each_operation_of_the_api_is_in_the_page_or_has_a_command() -> None:
    """A new route without an entry fails here."""
    offered = {action.operation for action in PAGE_ACTIONS}
    read = {*READING.values(), "DELETE /v1/session"} - offered
    assert not offered & set(NOT_IN_THE_PAGE)
    page = (Path(__file__).parents[2] / "docs" / "console.md").read_text(encoding="utf-8")
    for command in NOT_IN_THE_PAGE.values():
        verb, _, option = command.partition(" --")
        assert f"`{verb}`" in page, command
        assert not option or f"`--{option}`" in page, command
    assert described_changes() == offered | read | set(NOT_IN_THE_PAGE)
