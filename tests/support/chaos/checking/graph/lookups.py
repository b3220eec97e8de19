"""The lookup of the graph job: its rows in each version, and by which version each slice has to go."""

from __future__ import annotations

from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.checking.watermarks import TOLERANCE_MS, appended_ms
from tests.support.chaos.dump import Dump, Row

LOOKUP = "chaos-plans"
SITES = 3


def rows_of(version: int) -> dict[str, Row]:
    """Site -> what a version says of it. No two versions say the same, and in every second one a site is missing."""
    return {
        f"site-{site}": {"tariff": 10 * version + site, "plan": f"plan-{(version + site) % SITES}"}
        for site in range(SITES)
        if version % 2 or site != version % SITES
    }


def version_of(row: Row) -> int:
    """The version that is recorded with a slice; 0 where there is none."""
    return int(row["lookup_versions"].get(LOOKUP, 0))


def check_lookups(dump: Dump, judged: list[ClassifiedRecord], slices: list[Row], verdict: JobVerdict) -> None:
    """Check that versions rise from slice to slice, were applied, and are no older than the version that was applied
    when a record of the slice arrived.

    That moment is known from the log's times and from the time of the answer to the harness.
    """
    say = verdict.ledger.append
    before, newest = 1, max((version for version, _ in dump.lookups_applied), default=1)
    for row in slices:
        version = version_of(row)
        if not before <= version <= newest:
            say(f"slice {row['number']} uses version {version} of the lookup, after {before}; the newest is {newest}")
        before = max(before, version)
    versions = {row["number"]: version_of(row) for row in slices}
    for one in judged:
        came_ms = appended_ms(one.record.log_time_ms, dump.log_time_steps)
        due = max((version for version, at_ms in dump.lookups_applied if at_ms + TOLERANCE_MS < came_ms), default=1)
        if versions[one.slice] < due:
            say(
                f"record {one.record.partition}/{one.record.offset} came when version {due} of the lookup had been applied, and "
                f"its slice {one.slice} uses version {versions[one.slice]}"
            )
