"""The sink of a package: `tests/plugins/acme_sink` is defined outside of Strandline, and has the contract of Strandline's sinks.

`tests/contract/test_sinks.py` checks its writer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import FunctionUnusable, InvalidSettings, StrandlineError
from strandline.core.settings import Settings
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.pipelines.stages import Emit
from strandline.processing.run import missing_results
from strandline.processing.run.newer_results import emissions_from
from strandline.results.document import DocumentShape
from strandline.results.sinks.registry import (
    SINKS,
    installed_sinks,
    sink_of,
    sink_of_store,
    sink_of_stored,
    sink_writer,
    store_of,
)
from tests.support.plugins import forget_toys, install_toys
from tests.unit.test_audit_of_sinks import ROWS, SLICES, Lab

EMIT = Emit("sink", "arrow:all")
SHAPE = DocumentShape("arrow:all", "power", "all", 1, (), (("n", "long"),), is_elsewhere=True)


@pytest.fixture(autouse=True)
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ACME_ARROW_DIRECTORY", str(tmp_path / "arrow"))
    install_toys(monkeypatch, "acme_sink")
    yield
    forget_toys(monkeypatch)


def install(directory: Path, package: str, entry_point: str, module: str = "") -> None:
    """Create a package with this entry point in the directory."""
    metadata = directory / f"{package}-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[strandline.sinks]\n{entry_point}\n")
    (directory / f"{package.replace('-', '_')}.py").write_text(module)


def test_the_sink_of_a_package_is_found_by_each_of_its_names() -> None:
    from acme_sink.sink import SINK

    assert installed_sinks()["arrow"] is sink_of(EMIT) is SINK
    assert store_of(EMIT) == "other:arrow:all"
    assert sink_of_store("other:arrow:all") is SINK
    assert sink_of_stored("sink arrow:all minutes") == (SINK, "all minutes")


def test_the_audit_compares_its_results(tmp_path: Path) -> None:
    lab = Lab(tmp_path, use="arrow")
    report = lab.audit()
    assert report.outcome == "clean", report.sample
    stores = {one.store: one.counts for one in report.stores}
    assert stores["other:arrow:all"] == stores["other:arrow:minutes"] == {"same": SLICES * ROWS}

    file = sorted((tmp_path / "arrow" / "minutes").glob("*.arrow"))[1]
    table = pa.ipc.open_file(file).read_all()
    rows = table.to_pylist()
    rows[0]["n"] += 1
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows[:-1], table.schema))
    report = lab.audit()
    assert report.outcome == "differences"
    assert {(one.kind, one.store, one.id) for one in report.sample} == {
        ("different", "other:arrow:minutes", rows[0]["strandline_id"]),
        ("missing", "other:arrow:minutes", rows[-1]["strandline_id"]),
    }
    assert "the Arrow file" in next(one.detail for one in report.sample if one.kind == "different")


def test_a_start_compares_its_results_with_the_ledger(tmp_path: Path) -> None:
    lab = Lab(tmp_path, use="arrow")
    run: Any = SimpleNamespace(settings=lab.settings, job="power", pipeline=lab.pipeline)
    assert emissions_from(run, "all", EMIT, 2) == [(2, ""), (3, "")]
    expected = dict.fromkeys(range(1, SLICES + 1), ROWS)
    store = "sink arrow:all all"
    assert missing_results._found_from(run, None, store, expected, 1) == SLICES * ROWS
    assert missing_results._first_missing(run, None, store, expected) is None
    next((tmp_path / "arrow" / "all").glob("*.000000000002.arrow")).unlink()
    assert missing_results._found_from(run, None, store, expected, 1) == 2 * ROWS
    assert missing_results._first_missing(run, None, store, expected) == 2


def test_sql_names_it_like_the_other_sinks() -> None:
    text = (
        "create stream farm (device string, ts timestamp);\n"
        "create job power as insert into sink 'minutes' with (use = 'arrow') "
        "select device, count(*) as n from tumble(farm, ts, interval '1' minute) group by window_start, window_end, device"
    )
    documents = [one.data for one in translate(text, "power.sql").documents]
    assert documents[-1]["steps"][-1]["emit"] == [{"sink": {"name": "minutes", "use": "arrow"}}]
    again = [one.data for one in translate(as_sql(documents), "power.sql").documents]
    assert again == documents


@pytest.mark.parametrize(
    ("emit", "entry_point", "module", "error", "message"),
    [
        (
            "stone:pad",
            "other = acme_more:S",
            "",
            InvalidSettings,
            "provides a sink 'stone' (entry points of strandline",
        ),
        (
            "arrow:all",
            "arrow = acme_more:S",
            "",
            FunctionUnusable,
            "is in acme-more 2.0 and in acme-sink 1.0; uninstall",
        ),
        (
            "other:all",
            "other = acme_more:S",
            "S = 1",
            FunctionUnusable,
            "the sink other of acme-more 2.0 is a int, not a Sink",
        ),
        ("other:all", "other = acme_more:S", "1 / 0", FunctionUnusable, "can't be imported: ZeroDivisionError"),
        (
            "other:all",
            "other = acme_more:S",
            "from strandline.results.sinks.stream.sink import SINK as S",
            FunctionUnusable,
            "only Strandline's own sinks can have them",
        ),
    ],
    ids=("not installed", "in two packages", "of another class", "broken", "a stream"),
)
def test_a_sink_that_cannot_be_used_is_an_error_of_its_writer_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    emit: str,
    entry_point: str,
    module: str,
    error: type[StrandlineError],
    message: str,
) -> None:
    """A check, a preview, and an audit of the other sinks of a job don't need the package."""
    install(tmp_path, "acme-more", entry_point, module)
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    sink = sink_of(Emit("sink", emit))
    assert (sink.is_elsewhere, sink.is_compared) == (True, False)
    with pytest.raises(error, match=re.escape(message)):
        sink_writer(Settings(), SHAPE, Emit("sink", emit))


def test_no_package_replaces_a_sink_of_strandline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme-more", "files = acme_more:S", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    assert installed_sinks().keys() == {*SINKS, "arrow"} - {"sink"}


def test_no_code_outside_its_folder_names_a_sink() -> None:
    root = Path(__file__).parents[2] / "strandline"
    folders = "|".join(one.rpartition(".sinks.")[2].removesuffix(".sink") for one in SINKS.values())
    kinds = "|".join(SINKS)
    named = re.compile(
        rf"strandline\.results\.sinks\.({folders})\b|\b(emit|emission)\.({kinds})\b|"
        rf"\b(emit|emission|place)\.kind (==|!=|in|not in)\b"
    )
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        if path.parent.parent != root / "results" / "sinks"
        for line in path.read_text().splitlines()
        if named.search(line)
    ]
    assert found == []
