"""A planned slice is handed to another version only if that can't mix results of two versions. Real ledger, files, and table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import BadRecord, Conflict, StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.log.kafka_status import LogRange
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run import handed_slice, preparation
from strandline.processing.run.exit_codes import EXIT_FAILED
from strandline.processing.run.handed_slice import require_same_results
from strandline.processing.run.runner import Runner
from strandline.results.document import DocumentShape
from strandline.results.sinks.contract import batch_of
from strandline.results.sinks.files.writer import FilesWriter
from strandline.results.sinks.sql.writer import SqlWriter
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.unit.test_newer_results import FakeIndex, Written, letter, result

EMITS = "emit: [{elasticsearch: watts}, {stream: minutes}, {files: {path: FILES}}, {sql: {table: minutes}}]"
WITHOUT_TABLE = ("{files: {path: FILES}}, {sql: {table: minutes}}", "{files: {path: FILES}}")
OTHER_RESULTS = ("max(power)", "min(power)")
INDEX = "http://index"


class Lab:
    """A job with two committed slices. Its version 1 planned a third one and couldn't finish it."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        self.api, self.ledger, self.ledger_url = Api(ledger), ledger, f"sqlite:///{directory / 'ledger.sqlite'}"
        files = str(directory / "results")
        self.settings = Settings(data_dir=directory, sql_sink_url=f"sqlite:///{directory / 'results.sqlite'}")
        self.document = BOTH.replace("emit: [{elasticsearch: turbine-minute}]", EMITS).replace("FILES", files)
        self.files = files
        applied = self.api.apply(self.document)
        assert applied.status_code == 200, applied.text
        self.api.log.ranges["turbines"] = LogRange({0: 0, 1: 0}, {0: 30, 1: 60})
        epoch = ledger.begin_run("power", 1).epoch
        ledger.set_run_slots("power", epoch, 2)
        for number in (1, 2):
            ledger.plan_slice(a_slice(number))
            ledger.commit_checkpoint(a_checkpoint(number, result_offsets={"minutes": {0: 7}}))
        ledger.plan_slice(a_slice(3))
        self.records: dict[str, list[Written]] = {"minutes": [result(2, 1)], "power.dead-letter": [letter(0, 19)]}
        self.newest_document = 2

    def apply(self, *changes: tuple[str, str]) -> None:
        text = self.document
        for before, after in changes:
            before, after = (one.replace("FILES", self.files) for one in (before, after))
            assert before in text
            text = text.replace(before, after)
        answer = self.api.apply(text)
        assert answer.status_code == 200, answer.text

    def taking_over(self) -> JobRun:
        """Return the run of the current version that must finish the slice."""
        row = self.ledger.begin_run("power", 1, present_version=True)
        pipeline = load_pipeline(self.ledger, "power", row.version)
        return JobRun(self.settings, self.ledger, FakeIndex(), row, pipeline)  # type: ignore[arg-type]

    def write(self, store: str, emission: int) -> None:
        """Have version 1 write a result of this emission."""
        stage = load_pipeline(self.ledger, "power", 1).stages[0]
        fields = (("device", "string"),), (("n", "long"),)
        shape = DocumentShape("power", "power", stage.name, 1, *fields, is_elsewhere=True)
        if store == "elasticsearch":
            self.newest_document = emission
        elif store == "stream":
            self.records["minutes"].append(result(emission, 1))
        elif store == "dead letters":
            self.records["power.dead-letter"].append(letter(0, 10 * emission - 1))
        elif store == "files":
            files = FilesWriter(self.files, shape)
            files.prepare(None)
            files.commit(emission, 1, files.write_batches([batch_of(shape, [emission])], 1, emission).parts)
        else:
            assert self.settings.sql_sink_url is not None
            table = SqlWriter(str(self.settings.sql_sink_url), "minutes", shape)
            table.prepare(None)
            table.write_batches([batch_of(shape, [emission])], 1, emission)

    def last_records(self, _: str, __: object, topic: str, ___: object, is_wanted: Callable[[Any], bool]) -> list[Any]:
        return list(filter(is_wanted, self.records.get(topic, [])))

    def newer_document(self, url: str, alias: str, job: str, *, emission: int, **_: Any) -> dict[str, Any] | None:
        assert (url, job) == (INDEX, "power")
        return {"emission": self.newest_document} if alias == "watts" and self.newest_document > emission else None


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lab = Lab(ledger, tmp_path)
    monkeypatch.setattr(handed_slice, "last_records", lab.last_records)
    monkeypatch.setattr(handed_slice, "newer_document", lab.newer_document)
    yield lab
    ledger.close()


STORES = {
    "elasticsearch": "elasticsearch watts",
    "stream": "stream minutes",
    "files": "files /",
    "sql": "sql minutes",
    "dead letters": "stream power.dead-letter",
}


@pytest.mark.guarantee(
    "G772",
    "A version takes over a slice of another version only if no store contains results of the slice, or if it "
    "computes the same results for the same sinks. Otherwise nothing is written, and the job fails with the sinks and "
    "the remedies. A version that has begun to write a slice finishes it.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@pytest.mark.parametrize(("store", "named"), STORES.items())
def test_a_slice_with_results_in_any_store_is_not_taken_over_by_a_version_with_other_results(
    lab: Lab, store: str, named: str
) -> None:
    lab.write(store, 2)
    lab.apply(WITHOUT_TABLE, OTHER_RESULTS)
    require_same_results(lab.taking_over(), INDEX)
    lab.write(store, 3)
    with pytest.raises(
        Conflict, match=f"results of version 1 are in {named}.*version 2 would compute others"
    ) as refused:
        require_same_results(lab.taking_over(), INDEX)
    assert "then run strandline job start power: version 1 finishes the slice" in str(refused.value)


@pytest.mark.guarantee("G772")
@pytest.mark.parametrize("store", [one for one in STORES if one != "sql"])
def test_a_version_that_only_leaves_out_another_sink_takes_the_slice_over(lab: Lab, store: str) -> None:
    """The table refuses rows for good, and the version without it computes the same."""
    lab.write(store, 3)
    lab.apply(WITHOUT_TABLE)
    require_same_results(lab.taking_over(), INDEX)


def test_a_version_without_a_sink_that_has_results_of_the_slice_would_leave_them_incomplete(lab: Lab) -> None:
    lab.write("sql", 3)
    lab.apply(WITHOUT_TABLE)
    with pytest.raises(Conflict, match="results of version 1 are in sql minutes"):
        require_same_results(lab.taking_over(), INDEX)


def test_a_new_stage_before_the_one_that_wrote_changes_what_it_computes(lab: Lab) -> None:
    further = (
        "steps:\n  - window: {name: per_minute",
        "steps:\n  - window: {name: per_second, tumbling: 1s, by: [turbine], aggregate: {n: count(*), power: max(power)}}\n"
        "  - window: {name: per_minute",
    )
    lab.write("stream", 3)
    lab.apply(further)
    with pytest.raises(Conflict, match="results of version 1 are in stream minutes"):
        require_same_results(lab.taking_over(), INDEX)


@pytest.mark.guarantee("G772")
def test_the_run_that_takes_a_slice_over_asks_the_stores_after_the_fencing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.processing.slices.rewind import plan_of_job

    monkeypatch.setattr(preparation, "fence_older_runs", lambda *_: lab.write("stream", 3))
    monkeypatch.setattr(preparation, "require_newest_ledger", lambda *_: None)
    lab.apply(OTHER_RESULTS)
    run = lab.taking_over()
    with pytest.raises(Conflict, match="results of version 1 are in stream minutes"):
        preparation.prepare_run(run, None, plan_of_job(lab.ledger, run.pipeline), None)


def test_a_version_that_took_a_slice_over_finishes_it_and_the_next_one_is_compared_with_it(lab: Lab) -> None:
    lab.apply(OTHER_RESULTS)
    second = lab.taking_over()
    require_same_results(second, INDEX)
    lab.ledger.set_run_slots("power", second.epoch, 2)  # from now on it may write
    lab.write("stream", 3)
    lab.apply(("max(power)", "avg(power)"))
    assert lab.ledger.begin_run("power", 1).version == 2
    with pytest.raises(Conflict, match=r"results of version 2 are in stream minutes.*version 3 would compute others"):
        require_same_results(lab.taking_over(), INDEX)


def test_a_sink_that_cannot_be_queried_may_hold_results_unless_the_version_met_a_bad_record_first(lab: Lab) -> None:
    lab.apply(OTHER_RESULTS)
    run = lab.taking_over()
    before = load_pipeline(lab.ledger, "power", 1)
    emit = replace(before.stages[0].emits[0], kind="sink", name="gone:x")
    before = replace(before, stages=(replace(before.stages[0], emits=(emit,)),))
    last = lab.ledger.last_slice("power")
    assert last is not None
    written = [
        list(handed_slice._written(run, before, last, INDEX, is_before_emission=is_so)) for is_so in (False, True)
    ]
    assert [[one.where for one in some] for some in written] == [["sink gone:x (perhaps: it can't be queried)"], []]


@pytest.mark.guarantee("G772")
@pytest.mark.parametrize("error", [Conflict("the table refuses rows"), BadRecord("decode", "no JSON", "steps[0]")])
def test_a_job_whose_slice_can_not_be_taken_over_fails_and_its_next_start_tries_the_old_version(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: StrandlineError
) -> None:
    lab.write("elasticsearch", 3)
    lab.apply(WITHOUT_TABLE, OTHER_RESULTS)
    lab.ledger.move_job("power", JobState.STARTING)
    runner = Runner(lab.settings.model_copy(update={"ledger_url": lab.ledger_url}), "power")
    known: list[bool] = []

    def run_version(row: Any, *_: Any) -> None:
        if row.version == 1:
            raise error
        known.append(runner._met_bad_record)
        require_same_results(run_of(lab, row), INDEX)

    monkeypatch.setattr(runner, "_run_version", run_version)
    assert runner.run() == EXIT_FAILED
    assert [run.version for run in lab.ledger.runs("power")] == [1, 1, 2]
    job = lab.ledger.job("power")
    assert job.state is JobState.FAILED and "results of version 1 are in elasticsearch watts" in job.message
    assert known == [isinstance(error, BadRecord)]
    assert lab.ledger.begin_run("power", 1).version == 1


def run_of(lab: Lab, row: Any) -> JobRun:
    pipeline = load_pipeline(lab.ledger, "power", row.version)
    return JobRun(lab.settings, lab.ledger, FakeIndex(), row, pipeline)  # type: ignore[arg-type]
