"""Rows of a lookup in the REST API: the search by key, and the changes of a version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.lookups.packed_rows import pack_rows
from strandline.ledger.ledger import Ledger
from strandline.services.jobs.lookup_rows import CHANGES_SHOWN, find_changes
from tests.support.control import STREAM, Api

SITES = """\
lookup: sites
schema: {turbine: string, name: string}
key: turbine
rows:
  - {turbine: north-1, name: Nordhang}
  - {turbine: north-2, name: Nordkap}
  - {turbine: south-1, name: Suedhang}
"""
CHANGED = SITES.replace("Nordkap", "Nordsee").replace("turbine: south-1, name: Suedhang", "turbine: east-1, name: Ost")
PIPELINE = """\
pipeline: power
input: {stream: turbines}
event_time: {field: ts, delay: 10s}
steps:
  - enrich: {lookup: sites, key: turbine, add: [name]}
  - window: {name: per_minute, tumbling: 1m, by: [name], aggregate: {n: count(*)}}
    emit: [{elasticsearch: turbine-minute}]
"""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    api = Api(ledger)
    assert api.apply(SITES).status_code == 200
    yield api
    ledger.close()


def test_rows_are_searched_by_key_and_paged(api: Api) -> None:
    found = api.ask("GET", "/v1/lookups/sites/rows?key=NORTH&limit=1").json()
    assert (found["matches"], found["version"], found["key"]) == (2, 1, ["turbine"])
    assert found["page"] == [{"turbine": "north-1", "name": "Nordhang"}]
    rest = api.ask("GET", found["next"]).json()
    assert ([row["name"] for row in rest["page"]], rest["next"]) == (["Nordkap"], None)
    assert api.ask("GET", "/v1/lookups/sites/rows?key=hang").json()["matches"] == 0, "only the key is searched"
    assert api.ask("GET", "/v1/lookups/none/rows").status_code == 404
    assert api.ask("GET", "/v1/lookups/sites/rows?version=2").status_code == 404


def test_the_changes_of_a_version_have_the_rows_of_both(api: Api) -> None:
    applied = api.apply(f"{STREAM}---\n{PIPELINE}")
    assert applied.status_code == 200, applied.text
    assert api.apply(CHANGED).status_code == 200
    found = api.ask("GET", "/v1/lookups/sites/versions/2/changes").json()
    assert (found["earlier"], found["added"], found["removed"], found["changed"]) == (1, 1, 1, 1)
    assert found["page"] == [
        {
            "before": {"turbine": "north-2", "name": "Nordkap"},
            "after": {"turbine": "north-2", "name": "Nordsee"},
        },
        {"before": None, "after": {"turbine": "east-1", "name": "Ost"}},
        {"before": {"turbine": "south-1", "name": "Suedhang"}, "after": None},
    ]
    first = api.ask("GET", "/v1/lookups/sites/versions/1/changes")
    assert (first.status_code, "no version before version 1" in first.json()["detail"]) == (404, True)


def test_a_lookup_whose_old_rows_are_deleted_says_so(api: Api) -> None:
    """No job needs the lookup, so the ledger keeps only the rows of the current version."""
    assert api.apply(CHANGED).status_code == 200
    answer = api.ask("GET", "/v1/lookups/sites/versions/2/changes")
    assert (answer.status_code, "does not keep the rows" in answer.json()["detail"]) == (404, True)


def test_many_changes_are_counted_and_the_first_are_returned() -> None:
    rows = b"\n".join(b'{"turbine": "t%d"}' % number for number in range(3 * CHANGES_SHOWN))
    counts, page = find_changes(["turbine"], pack_rows(b""), pack_rows(rows))
    assert (counts, len(page)) == ((3 * CHANGES_SHOWN, 0, 0), CHANGES_SHOWN)
