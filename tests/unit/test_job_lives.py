"""Jobs that are deleted, whose names are reused, and that are reset, and streams that are deleted, with the REST API."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from strandline.core.errors import Conflict, Fenced, IndexUnavailable, LogUnavailable, NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.lifecycle import Origin, ResultStore
from strandline.ledger.states import Desired, JobState, WindowRange
from strandline.log.admin import KafkaAdmin, TopicDescription
from strandline.log.kafka_status import LogRange
from strandline.processing.slices.rewind import plan_of_job, require_ledger_holds, rewind_cost
from strandline.services.jobs import job_lifecycle
from strandline.services.jobs.job_status import present_pipeline
from tests.support.control import BOTH, PIPELINE, STREAM, Admin, Api, MadeTopic
from tests.support.ledgers import a_checkpoint, a_slice

READER = """\
pipeline: daily
input: {stream: turbine-minutes}
event_time: {field: window_end, delay: 0s}
steps:
  - window: {name: per_day, tumbling: 1d, by: [turbine], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: turbine-day}]
"""
WATTS = PIPELINE.replace("pipeline: power", "pipeline: watts")
TO_STREAM = BOTH.replace("elasticsearch: turbine-minute", "stream: turbine-minutes")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def run_and_stop(api: Api, slices: int = 2) -> None:
    """Have the job commit slices, and plan one more, which it leaves."""
    ledger = api.ledger
    number = ledger.slice_count("power")
    epoch = ledger.begin_run("power", 1).epoch
    version = ledger.job("power").version
    last = ledger.last_slice("power")
    offsets = last.offsets if last else {"turbines": {0: 0, 1: 0}}
    for at in range(number + 1, number + slices + 2):
        row = a_slice(at, epoch, version=version, offsets_first=offsets, offsets=offsets)
        ledger.plan_slice(row)
        if at <= number + slices:
            ledger.commit_checkpoint(a_checkpoint(at, epoch, version=version))
    ledger.end_run("power", epoch, "died")
    ledger.set_desired("power", Desired.STOPPED)
    ledger.move_job("power", JobState.STOPPED)


def detail(api: Api, method: str, path: str, status: int = 409) -> str:
    answer = api.ask(method, path)
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


@pytest.mark.guarantee(
    "G221",
    "After a reset, or if the name of a deleted job is used again, the aliases show only results of the current "
    "incarnation, each window once. A reset that is killed has happened completely or not at all. No version emits to "
    "a sink that contains results of an earlier incarnation.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@pytest.mark.guarantee(
    "G222",
    "Epochs, versions, slices, and generations of a job's name never start again at 1, whatever is reset or deleted. "
    "An older run can commit nothing after a reset or deletion has begun, and a start in between isn't undone.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_a_reset_begins_at_a_place_of_the_log_and_numbers_nothing_anew(api: Api) -> None:
    api.apply(BOTH)
    run_and_stop(api)
    answer = api.ask("POST", "/v1/jobs/power/reset?to=earliest")
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert (view["generation"], view["epoch"], view["slice"], view["lag_records"]) == (2, 2, 4, 300)
    assert view["counts"]["records"] == 0 and view["last_emission"] == {}
    origin = api.ledger.last_slice("power")
    assert origin is not None and origin.offsets == {"turbines": {0: 0, 1: 5}}
    pipeline = present_pipeline(api.ledger, api.ledger.job("power"))
    plan = plan_of_job(api.ledger, pipeline)
    assert (plan.slice_first, plan.slice_committed, plan.emitted) == (5, 4, {})
    require_ledger_holds(api.ledger, "power", plan)
    assert rewind_cost(api.ledger, plan, "power").needed == origin.offsets
    assert api.ledger.input_document("power", "turbines") is None
    run_and_stop(api)  # the next slices follow
    again = api.ask("POST", "/v1/jobs/power/reset?to=latest").json()
    assert (again["generation"], again["epoch"], again["slice"], again["lag_records"]) == (3, 4, 8, 0)
    assert [event.kind for event in api.ledger.events("power")].count("job_reset") == 2


@pytest.mark.guarantee("G766")
def test_a_reset_uses_no_generation_that_the_index_has_and_the_ledger_does_not(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is from before an earlier reset, or a backfill."""
    asked: list[list[str]] = []

    def newest(url: str, stores: list[str]) -> int:
        asked.append(stores)
        return 4

    monkeypatch.setattr(job_lifecycle, "newest_generation", newest)
    monkeypatch.setattr(job_lifecycle, "hide_older", lambda *_: None)
    api.apply(BOTH)
    run_and_stop(api)
    assert api.ask("POST", "/v1/jobs/power/reset?to=earliest").json()["generation"] == 5
    assert asked == [["turbine-minute"]]


def test_a_reset_to_a_time_begins_at_the_first_record_that_arrived_then(api: Api) -> None:
    api.apply(BOTH)
    run_and_stop(api)
    api.ask("POST", "/v1/jobs/power/reset?to=150")
    origin = api.ledger.last_slice("power")
    assert origin is not None and origin.offsets == {"turbines": {0: 100, 1: 150}}


def test_a_reset_to_the_start_begins_where_the_document_says(api: Api) -> None:
    """For a batch this is the start of its range: a reset to `earliest` would compute what is before it too."""
    api.apply(BOTH.replace("{stream: turbines}", "{stream: turbines, start: 1970-01-01T00:00:00.150Z, end: latest}"))
    run_and_stop(api)
    assert api.ask("POST", "/v1/jobs/power/reset?to=start").status_code == 200
    origin = api.ledger.last_slice("power")
    assert origin is not None and origin.offsets == {"turbines": {0: 100, 1: 150}}


def test_where_the_dead_letters_of_earlier_lives_end_stands_in_the_origin(api: Api) -> None:
    api.apply(BOTH)
    run_and_stop(api)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    api.ask("POST", "/v1/jobs/power/reset?to=earliest")
    checkpoint = api.ledger.last_checkpoint("power")
    assert checkpoint is not None and checkpoint.dead_letter_offsets == {0: 17}


@pytest.mark.guarantee(
    "G223",
    "A running job, or a job whose results another job reads, can't be deleted. A stream that a job or a lookup uses "
    "can't be deleted either. The error names the dependents.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_a_job_that_runs_is_neither_reset_nor_deleted(api: Api, state: JobState) -> None:
    api.apply(BOTH)
    for one in (JobState.STARTING, JobState.RUNNING)[: 1 + (state is JobState.RUNNING)]:
        api.ledger.move_job("power", one)
    assert "strandline job stop power" in detail(api, "DELETE", "/v1/jobs/power")
    assert "strandline job stop power" in detail(api, "POST", "/v1/jobs/power/reset?to=earliest")
    assert api.ledger.job("power").epoch == 0


def test_a_place_that_is_none_is_refused(api: Api) -> None:
    api.apply(BOTH)
    assert api.ask("POST", "/v1/jobs/power/reset?to=yesterday").status_code == 422


def test_a_job_that_emits_to_a_stream_is_not_reset(api: Api) -> None:
    api.apply(TO_STREAM)
    assert "twice" in detail(api, "POST", "/v1/jobs/power/reset?to=earliest")


@pytest.mark.guarantee("G222")
def test_a_start_in_between_is_not_undone(api: Api) -> None:
    api.apply(BOTH)
    run_and_stop(api)
    fence = api.ledger.end_runs("power", "reset")
    run = api.ledger.begin_run("power", 2)
    with pytest.raises(Fenced):
        api.ledger.reset_job(fence, Origin({"turbines": {0: 0, 1: 5}}, {}))
    with pytest.raises(Fenced):
        api.ledger.delete_job(fence, {})
    assert api.ledger.job("power").epoch == run.epoch
    assert api.ledger.slice_count("power") == 3


def test_a_backfill_that_is_asked_for_in_between_keeps_the_job(api: Api) -> None:
    """Else its process would be started again and again, of a job that isn't there."""
    api.apply(BOTH)
    run_and_stop(api)
    fence = api.ledger.end_runs("power", "deleted")
    api.ledger.request_backfill("power", 1, (0, None), {"per_minute": WindowRange(0, 60_000)}, 2, 1, {"turbines": 1})
    for change in (partial(api.ledger.delete_job, fence, {}), partial(api.ledger.reset_job, fence, Origin({}, {}))):
        with pytest.raises(Conflict, match=r"backfill 2 of job power is running; wait for its end, or cancel it"):
            change()
    assert api.ledger.job("power").epoch == fence.epoch


@pytest.mark.guarantee("G222")
def test_an_older_run_can_commit_nothing_once_a_reset_has_begun(api: Api) -> None:
    """A reset that is killed here leaves the job as it was, and may be repeated."""
    api.apply(BOTH)
    run_and_stop(api)
    api.ledger.end_runs("power", "reset")
    with pytest.raises(Fenced):
        api.ledger.commit_checkpoint(a_checkpoint(3, 1))
    assert api.ledger.slice_count("power") == 3
    assert api.ask("POST", "/v1/jobs/power/reset?to=earliest").json()["generation"] == 2


@pytest.mark.guarantee("G222")
def test_a_deleted_job_is_not_there_and_its_name_is_used_anew_above_all_that_was(api: Api) -> None:
    api.apply(BOTH)
    run_and_stop(api)
    api.ledger.add_result_index("power", "turbine-minute-2026.11")
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    answer = api.ask("DELETE", "/v1/jobs/power").json()
    assert answer == {
        "job": "power",
        "indices": ["turbine-minute-2026.11"],
        "results": "kept",
        "dead_letters": "kept",
    }
    assert api.ask("GET", "/v1/jobs").json() == {"jobs": []}
    assert detail(api, "GET", "/v1/jobs/power", 404)
    with pytest.raises(NotFound):
        api.ledger.begin_run("power", 3)
    assert api.ledger.free_jobs("control") == []
    assert api.outcomes(PIPELINE) == ["created"]
    job = api.ledger.job("power")
    assert (job.version, job.epoch, job.generation, job.state) == (2, 2, 2, JobState.CREATED)
    origin, checkpoint = api.ledger.last_slice("power"), api.ledger.last_checkpoint("power")
    assert origin is not None and checkpoint is not None
    assert (origin.number, origin.offsets, origin.version) == (4, {"turbines": {0: 0, 1: 5}}, 2)
    assert (checkpoint.dead_letter_offsets, checkpoint.emitted) == ({0: 17}, {})
    assert api.ledger.begin_run("power", 4).epoch == 3


def test_a_new_job_of_a_deleted_ones_name_may_be_quite_another(api: Api) -> None:
    api.apply(BOTH)
    run_and_stop(api)
    api.ask("DELETE", "/v1/jobs/power")
    other = PIPELINE.replace("{field: ts, delay: 10s}", "{from: log}").replace("per_minute", "minutes")
    assert api.outcomes(other) == ["created"]


@pytest.mark.guarantee("G223")
def test_what_depends_on_a_job_is_named(api: Api) -> None:
    api.apply(f"{TO_STREAM}---\n{READER}")
    api.log.ranges["turbine-minutes"] = LogRange({0: 0}, {0: 0})
    assert "job daily reads its results" in detail(api, "DELETE", "/v1/jobs/power")
    assert api.ask("DELETE", "/v1/jobs/daily").status_code == 200
    assert api.ask("DELETE", "/v1/jobs/power").status_code == 200
    assert "strandline stream delete turbine-minutes" in api.apply(TO_STREAM).json()["detail"]
    assert api.ask("DELETE", "/v1/streams/turbine-minutes").json() == {"stream": "turbine-minutes", "topic": "deleted"}
    assert api.apply(TO_STREAM).status_code == 200


@pytest.mark.guarantee("G771")
@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/v1/jobs/power"), ("POST", "/v1/jobs/power/reset?to=earliest")]
)
def test_a_job_keeps_its_checkpoints_until_the_readers_of_its_former_stream_have_read_it(
    api: Api, method: str, path: str
) -> None:
    """The current version of job power omits the stream, and its reader has read nothing yet."""
    api.apply(f"{TO_STREAM}---\n{READER}")
    ledger = api.ledger
    epoch = ledger.begin_run("power", 1).epoch
    ledger.plan_slice(a_slice(1, epoch))
    ledger.commit_checkpoint(a_checkpoint(1, epoch, result_offsets={"turbine-minutes": {0: 7}}))
    ledger.end_run("power", epoch, "died")
    ledger.set_desired("power", Desired.STOPPED)
    ledger.move_job("power", JobState.STOPPED)
    api.log.ranges["turbines"] = LogRange({0: 0, 1: 0}, {0: 30, 1: 60})
    left_out = api.apply(BOTH)
    assert left_out.status_code == 200, left_out.text

    def ask() -> tuple[int, str]:
        answer = api.ask(method, path)
        return answer.status_code, answer.text

    status, text = ask()
    assert status == 409 and "job daily hasn't read all results that power emitted to stream turbine-minutes" in text
    ledger.begin_run("daily", 1)
    ledger.plan_slice(a_slice(1, job="daily", offsets_first={}, offsets={"turbine-minutes": {0: 7}}))
    assert ask()[0] == 200


def test_a_stream_that_was_deleted_with_a_jobs_results_is_not_emitted_to_again(api: Api) -> None:
    """The new topic is another one. The job continued from offsets that it does not have, and failed at each start."""
    to_stream = BOTH.replace("elasticsearch: turbine-minute", "stream: turbine-minute")
    api.apply(to_stream)
    run_and_stop(api)
    api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
    api.log.ranges["turbine-minute"] = LogRange({0: 0}, {0: 7})
    assert api.apply(BOTH).status_code == 200
    assert api.ask("DELETE", "/v1/streams/turbine-minute").status_code == 200
    last = api.ledger.last_checkpoint("power")
    assert last is not None and last.result_offsets == {"turbine-minute": {}}
    refused = api.apply(to_stream)
    assert refused.status_code == 409 and "was deleted with its results" in refused.json()["detail"]
    assert api.apply(TO_STREAM).status_code == 200, "a stream of another name"


@pytest.mark.parametrize("place", ["files: {path: /data/minutes}", "sql: {table: minutes}"])
def test_a_name_that_is_used_anew_does_not_add_to_files_and_tables_of_the_deleted_job(api: Api, place: str) -> None:
    to_place = BOTH.replace("elasticsearch: turbine-minute", place)
    api.apply(to_place)
    api.ask("DELETE", "/v1/jobs/power")
    refused = api.apply(to_place)
    assert refused.status_code == 409 and "can contain results that job power wrote" in refused.json()["detail"]
    assert api.apply(to_place.replace("minutes", "hours")).status_code == 200


@pytest.mark.guarantee("G221")
@pytest.mark.parametrize("end", ["reset", "delete"])
@pytest.mark.parametrize("place", ["stream: turbine-minutes", "files: {path: /data/minutes}", "sql: {table: minutes}"])
def test_a_place_without_generations_that_an_earlier_life_had_is_not_put_back(api: Api, place: str, end: str) -> None:
    """The job would recompute the windows of the earlier life, and emit them there a second time."""
    to_place = BOTH.replace("elasticsearch: turbine-minute", place)
    api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
    api.apply(to_place)
    run_and_stop(api)
    if end == "reset":
        assert api.apply(BOTH).status_code == 200, "without the place"
        assert api.ask("POST", "/v1/jobs/power/reset?to=earliest").status_code == 200
    else:
        assert api.ask("DELETE", "/v1/jobs/power").status_code == 200
        assert api.apply(BOTH).status_code == 200, "without the place"
    refused = api.apply(to_place)
    assert refused.status_code == 409 and "results that job power wrote" in refused.json()["detail"]
    assert api.apply(to_place.replace("minutes", "hours")).status_code == 200
    assert api.apply(BOTH).status_code == 200
    assert api.apply(to_place.replace("minutes", "hours")).status_code == 200, "a place of this life"


def test_a_place_that_the_present_life_left_is_put_back(api: Api) -> None:
    """The job continues there with the first window that is not closed."""
    api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
    api.apply(TO_STREAM)
    run_and_stop(api)
    assert api.apply(BOTH).status_code == 200
    assert api.apply(TO_STREAM).status_code == 200


def test_a_stream_that_an_earlier_life_emitted_to_is_emitted_to_again_once_it_was_deleted(api: Api) -> None:
    api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
    api.apply(TO_STREAM)
    run_and_stop(api)
    api.log.ranges["turbine-minutes"] = LogRange({0: 0}, {0: 7})
    api.apply(BOTH)
    api.ask("POST", "/v1/jobs/power/reset?to=earliest")
    assert "strandline stream delete turbine-minutes" in api.apply(TO_STREAM).json()["detail"]
    assert api.ask("DELETE", "/v1/streams/turbine-minutes").status_code == 200
    assert api.apply(TO_STREAM).status_code == 200


@pytest.mark.guarantee("G223")
def test_a_stream_is_deleted_only_when_no_job_needs_it(api: Api) -> None:
    api.apply(TO_STREAM)
    assert "job power reads it" in detail(api, "DELETE", "/v1/streams/turbines")
    assert "job power emits to it" in detail(api, "DELETE", "/v1/streams/turbine-minutes")
    api.ask("DELETE", "/v1/jobs/power")
    assert api.ask("DELETE", "/v1/streams/turbines?keep_topic=true").json()["topic"] == "kept"
    assert detail(api, "GET", "/v1/streams/turbines", 404)
    assert detail(api, "DELETE", "/v1/streams/turbines", 404)


def test_a_deletion_of_a_stream_that_ended_in_the_middle_is_ended_by_the_next(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.apply(BOTH)
    api.ask("DELETE", "/v1/jobs/power")

    def is_away(self: KafkaAdmin, topic: str) -> None:
        raise LogUnavailable("Kafka does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Admin, "delete", is_away)
        assert api.ask("DELETE", "/v1/streams/turbines").status_code == 503
    assert api.ask("DELETE", "/v1/streams/turbines").json() == {"stream": "turbines", "topic": "deleted"}

    def is_gone(self: KafkaAdmin, topic: str) -> None:
        raise NotFound("no such topic")

    monkeypatch.setattr(Admin, "describe", is_gone)
    assert "no stream turbines" in detail(api, "DELETE", "/v1/streams/turbines", 404)


def test_a_topic_of_the_name_of_a_deleted_stream_that_is_another_one_stays(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.apply(BOTH)
    api.ask("DELETE", "/v1/jobs/power")
    assert api.ask("DELETE", "/v1/streams/turbines").status_code == 200
    monkeypatch.setattr(Admin, "describe", lambda self, topic: TopicDescription(topic, "id-of-another", 2))
    assert detail(api, "DELETE", "/v1/streams/turbines", 404)


def test_a_job_that_is_submitted_meanwhile_keeps_its_stream(api: Api) -> None:
    api.apply(BOTH)
    with pytest.raises(Conflict):
        api.ledger.delete_stream("turbines", {})


def test_another_job_does_not_mix_its_results_with_those_that_a_deleted_one_left(api: Api) -> None:
    api.apply(BOTH)
    api.ledger.add_result_index("power", "turbine-minute-2026.11")
    api.ask("DELETE", "/v1/jobs/power")
    other = PIPELINE.replace("pipeline: power", "pipeline: watts")
    assert "strandline job delete power --results" in api.apply(other).json()["detail"]
    api.ledger.forget_indices("power", ["turbine-minute-2026.11"])
    assert api.outcomes(other) == ["created"]


@pytest.mark.guarantee(
    "G711",
    "No other job gets an alias that contains results of an earlier incarnation of a job. A sink gets no results of "
    "another meaning or type from the same job, also after a version without this sink.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_an_alias_with_results_of_an_earlier_life_is_free_for_no_other_job(api: Api) -> None:
    """The alias became free when the deleted job's name was reused, and showed results of two jobs as those of one."""
    api.apply(BOTH)
    api.ledger.add_result_index("power", "turbine-minute-2026.11")
    api.ask("DELETE", "/v1/jobs/power")
    assert api.apply(PIPELINE.replace("turbine-minute", "minute")).status_code == 200
    other = PIPELINE.replace("pipeline: power", "pipeline: watts")
    refused = api.apply(other)
    assert refused.status_code == 409 and "results that job power wrote" in refused.json()["detail"]
    assert api.apply(other.replace("turbine-minute", "minutes")).status_code == 200
    assert api.apply(PIPELINE).status_code == 200, "the job itself, under a new generation"


def test_an_alias_that_a_job_left_in_its_only_life_is_free(api: Api) -> None:
    """With a backfill's generation, which is above the job's own."""
    api.apply(BOTH)
    for index in ("turbine-minute-2026.11", "turbine-minute.g2-2026.11"):
        api.ledger.add_result_index("power", index)
    assert api.apply(PIPELINE.replace("turbine-minute", "minute")).status_code == 200
    assert api.outcomes(PIPELINE.replace("pipeline: power", "pipeline: watts")) == ["created"]


@pytest.mark.guarantee("G711")
@pytest.mark.parametrize("place", ["stream: turbine-minute", "elasticsearch: turbine-minute"])
def test_a_place_is_not_put_back_with_results_of_another_meaning(api: Api, place: str) -> None:
    """One step that does so is refused. A version without the place in between doesn't change this."""
    minutes = BOTH.replace("elasticsearch: turbine-minute", place)
    elsewhere = BOTH.replace("elasticsearch: turbine-minute", "elasticsearch: elsewhere")
    hours = minutes.replace("per_minute", "per_hour").replace("tumbling: 1m", "tumbling: 1h")
    api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
    api.apply(minutes)
    run_and_stop(api)
    at_once = api.apply(hours).json()["detail"]
    assert api.apply(elsewhere).status_code == 200
    assert api.apply(elsewhere.replace("peak", "most")).status_code == 200
    refused = api.apply(hours)
    assert refused.status_code == 409, refused.text
    change = "turbine-minute from results of per_minute to those of per_hour"
    assert change in at_once and change in refused.json()["detail"] and "version 1" in refused.json()["detail"]
    as_text = minutes.replace("max(power)", "max(cast(power as string))")
    assert "peak" in api.apply(as_text).json()["detail"]
    assert api.apply(minutes).status_code == 200


def test_dead_letters_of_a_deleted_job_are_deleted_if_asked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    def request(url: str, method: str, path: str, **options: object) -> None:
        paths.append(f"{method} {path}")

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", request)
    api.apply(BOTH)
    api.ledger.add_result_index("power", "turbine-minute-2026.11")
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    api.ask("DELETE", "/v1/jobs/power")
    answer = api.ask("DELETE", "/v1/jobs/power?results=true&dead_letters=true").json()
    assert (answer["results"], answer["dead_letters"]) == ("deleted", "deleted")
    assert paths == [
        "DELETE /turbine-minute-2026.11",
        "DELETE /_index_template/strandline-turbine-minute",
        "DELETE /power.dead-letters",
    ]
    api.apply(PIPELINE)
    checkpoint = api.ledger.last_checkpoint("power")
    assert checkpoint is not None and checkpoint.dead_letter_offsets == {}


def test_where_deleted_dead_letters_ended_is_forgotten_though_the_index_is_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new topic begins at 0: of a job of that name neither replay nor audit saw the first letters."""

    def request(url: str, method: str, path: str, **options: object) -> None:
        if is_away:
            raise IndexUnavailable("Elasticsearch does not answer")

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", request)
    api.apply(BOTH)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    is_away = True
    assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code == 503
    checkpoint = api.ledger.last_checkpoint("power")
    assert checkpoint is not None and checkpoint.dead_letter_offsets == {}
    del api.log.ranges["power.dead-letter"]
    is_away = False
    assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").json()["dead_letters"] == "deleted", (
        "the remaining letters"
    )
    api.apply(PIPELINE)
    assert api.ledger.job("power").letters_first == 0


@pytest.mark.guarantee(
    "G712",
    "Deleting the dead letters of a deleted job deletes none of the next job with its name. During the deletion, and "
    "after an interrupted one, the name can't be used; if it was used before, nothing is deleted.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_dead_letters_stay_when_the_name_is_used_anew_during_the_deletion(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To delete the results may take minutes, and the new job writes to the same topic."""
    topics: list[str] = []

    def request(url: str, method: str, path: str, **options: object) -> None:
        if path == "/turbine-minute-2026.11":
            assert api.apply(PIPELINE).status_code == 200

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", request)
    monkeypatch.setattr(Admin, "delete", lambda self, topic: topics.append(topic))
    api.apply(BOTH)
    api.ledger.add_result_index("power", "turbine-minute-2026.11")
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    told = detail(api, "DELETE", "/v1/jobs/power?results=true&dead_letters=true")
    assert "was used again" in told and topics == []
    assert api.ledger.job("power").letters_first == 17


@pytest.mark.guarantee("G712")
def test_a_name_is_not_used_anew_while_its_dead_letters_are_deleted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str] = []

    def delete(self: Admin, topic: str) -> None:
        answers.append(api.apply(PIPELINE).json()["detail"])
        if len(answers) == 1:
            raise LogUnavailable("Kafka does not answer")

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", lambda *given, **options: None)
    monkeypatch.setattr(Admin, "delete", delete)
    api.apply(BOTH)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code == 503
    answers.append(api.apply(PIPELINE).json()["detail"])
    assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code == 200
    assert len(answers) == 3 and all("strandline job delete power --dead-letters" in told for told in answers)
    assert api.apply(PIPELINE).status_code == 200
    assert api.ledger.job("power").letters_first == 0


def test_a_name_that_is_used_anew_has_its_topic_of_dead_letters_whatever_was_deleted_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was there when it was looked for."""
    ensure, done = api.topics.ensure_dead_letter_topic, list[str]()

    def overtaken(job: str) -> MadeTopic:
        done.append("made")
        if "deleted" not in done:
            assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code == 200
        return ensure(job)

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", lambda *given, **options: None)
    monkeypatch.setattr(Admin, "delete", lambda self, topic: done.append("deleted"))
    api.apply(BOTH)
    api.ask("DELETE", "/v1/jobs/power")
    api.topics.ensure_dead_letter_topic = overtaken  # type: ignore[method-assign]
    assert api.apply(PIPELINE).status_code == 200
    assert done == ["made", "deleted", "made"]


def test_with_an_index_of_open_windows_its_own_template_goes_and_no_other(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at its last hyphen, `turbine-minute.open` named the template of an emission `turbine`."""
    paths: list[str] = []

    def request(url: str, method: str, path: str, **options: object) -> None:
        paths.append(path)

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", request)
    api.apply(BOTH)
    for index in ("turbine-minute.g2-2026.11", "turbine-minute.open"):
        api.ledger.add_result_index("power", index)
    assert api.ask("DELETE", "/v1/jobs/power?results=true").status_code == 200
    assert paths == [
        "/turbine-minute.g2-2026.11",
        "/_index_template/strandline-turbine-minute.g2",
        "/turbine-minute.open",
        "/_index_template/strandline-turbine-minute.open",
    ]


def hand_over(api: Api) -> str:
    """Job power emits to alias turbine-minute, and then job watts does, to an index of it that power made, too. Returns the
    documents."""
    api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
    api.apply(BOTH)
    run_and_stop(api)
    for index in ("turbine-minute-2026.10", "turbine-minute-2026.11"):
        api.ledger.add_result_index("power", index)
    elsewhere = PIPELINE.replace("turbine-minute", "minute")
    documents = f"{STREAM}---\n{elsewhere}---\n{WATTS}"
    assert api.outcomes(documents) == ["unchanged", "changed", "created"]
    api.ledger.add_result_index("watts", "turbine-minute-2026.11")
    return documents


@pytest.mark.guarantee(
    "G740",
    "A job keeps its alias, whatever happens to the job that had the alias before. An index that two jobs wrote "
    "belongs to the remaining job after the results of the deleted one are deleted, and is deleted with the results "
    "of the remaining job.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_an_alias_that_a_job_has_stays_its_own_whatever_becomes_of_the_job_that_had_it_before(api: Api) -> None:
    """The documents were refused, and the other job could get no new version."""
    documents = hand_over(api)
    assert api.ask("POST", "/v1/jobs/power/reset?to=earliest").status_code == 200
    assert api.outcomes(documents) == ["unchanged"] * 3
    assert api.outcomes(WATTS.replace("peak", "most")) == ["changed"]


@pytest.mark.guarantee("G740")
def test_what_two_jobs_wrote_to_one_index_is_the_other_ones_when_the_results_of_a_deleted_one_are_deleted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias was never free for another job, and the advice to delete the results had no effect."""
    monkeypatch.setattr("strandline.results.elasticsearch_client.request", lambda *given, **options: None)
    hand_over(api)
    assert api.outcomes(WATTS.replace("turbine-minute", "watt-minute")) == ["changed"]
    assert api.ask("DELETE", "/v1/jobs/power").status_code == 200
    volts = PIPELINE.replace("pipeline: power", "pipeline: volts")
    assert "strandline job delete power --results" in api.apply(volts).json()["detail"]
    assert api.ask("DELETE", "/v1/jobs/power?results=true").json()["indices"] == ["turbine-minute-2026.10"]
    assert api.outcomes(volts) == ["created"]
    assert api.ask("DELETE", "/v1/jobs/watts?results=true").json()["indices"] == ["turbine-minute-2026.11"]


def test_what_all_jobs_left_is_read_once_in_a_plan_and_only_for_a_new_alias(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of many pipelines read the indices of all jobs for each of them, and took seconds."""
    reads, result_stores = list[int](), Ledger.result_stores

    def counted(ledger: Ledger) -> list[ResultStore]:
        reads.append(1)
        return result_stores(ledger)

    monkeypatch.setattr(Ledger, "result_stores", counted)
    named = ("power", "watts", "volts")
    documents = "---\n".join(
        PIPELINE.replace("pipeline: power", f"pipeline: {name}").replace("turbine-minute", name) for name in named
    )
    api.apply(STREAM)
    yaml = {"Content-Type": "application/yaml"}
    assert api.ask("POST", "/v1/documents/plan", content=documents, headers=yaml).status_code == 200
    assert len(reads) == 1
    api.apply(documents)
    reads.clear()
    again = api.ask("POST", "/v1/documents/plan", content=documents, headers=yaml).json()
    assert [one["outcome"] for one in again["jobs"]] == ["unchanged"] * 3 and reads == []


def no_request(*given: object, **options: object) -> None:
    """Elasticsearch does what is asked."""


@pytest.mark.guarantee(
    "G741",
    "If Kafka refuses to delete the dead letters of a deleted job, they stay, and its name is free. During the "
    "deletion, a plan reports that the name can't be used, and an apply is refused before it changes anything.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_where_kafka_refuses_to_delete_dead_letters_they_stay_and_the_name_is_free(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name was lost: it waited for a deletion that could not be."""

    def refuse(self: Admin, topic: str) -> None:
        raise Conflict(f"topic {topic} could not be deleted: Kafka refused it (TOPIC_DELETION_DISABLED)")

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", no_request)
    monkeypatch.setattr(Admin, "delete", refuse)
    api.apply(BOTH)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    assert "TOPIC_DELETION_DISABLED" in detail(api, "DELETE", "/v1/jobs/power?dead_letters=true")
    assert api.outcomes(PIPELINE) == ["created"]
    assert api.ledger.job("power").letters_first == 17
    checkpoint = api.ledger.last_checkpoint("power")
    assert checkpoint is not None and checkpoint.dead_letter_offsets == {0: 17}


@pytest.mark.guarantee("G741")
def test_a_name_whose_dead_letters_are_being_deleted_is_refused_before_anything_is_changed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(self: Admin, topic: str) -> None:
        raise LogUnavailable("Kafka does not answer")

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", no_request)
    monkeypatch.setattr(Admin, "delete", is_away)
    api.apply(BOTH)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code == 503
    other = WATTS.replace("turbine-minute", "watt-minute")
    documents = "---\n".join((STREAM.replace("turbines", "wind"), other, PIPELINE))
    yaml = {"Content-Type": "application/yaml"}
    plans = api.ask("POST", "/v1/documents/plan", content=documents, headers=yaml).json()["jobs"]
    (change,) = plans[1]["changes"]
    refused = api.apply(documents)
    assert refused.status_code == 409 and refused.json()["detail"] == change["reason"]
    assert "strandline job delete power --dead-letters" in change["reason"] and change["effect"] == "forbidden"
    assert [stream.name for stream in api.ledger.streams()] == ["turbines"]
    assert api.ledger.jobs() == []


@pytest.mark.guarantee(
    "G742",
    "If two deletions of the same dead letters run concurrently, the older one stops before it deletes the topic if "
    "it finds the newer one, and doesn't free the name.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_of_two_deletions_of_the_same_dead_letters_the_older_one_takes_none_of_the_next_job(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one ended first and gave the name free, while the older one was still at work."""
    topics, asked = list[str](), list[str]()

    def request(url: str, method: str, path: str, **options: object) -> None:
        asked.append(path)
        if len(asked) == 1:
            assert api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code == 200
            assert api.outcomes(PIPELINE) == ["created"]

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", request)
    monkeypatch.setattr(Admin, "delete", lambda self, topic: topics.append(topic))
    api.apply(BOTH)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    assert "another deletion of the dead letters" in detail(api, "DELETE", "/v1/jobs/power?dead_letters=true")
    assert topics == ["power.dead-letter"], "by the newer one, before the name was reused"


@pytest.mark.guarantee("G742")
def test_the_older_of_two_deletions_of_dead_letters_does_not_give_the_name_free(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[object] = []

    def delete(self: Admin, topic: str) -> None:
        if not answers:
            answers.append("older")
            answers.append(api.ask("DELETE", "/v1/jobs/power?dead_letters=true").status_code)
        else:
            answers.append("newer")
            raise LogUnavailable("Kafka does not answer")

    monkeypatch.setattr("strandline.results.elasticsearch_client.request", no_request)
    monkeypatch.setattr(Admin, "delete", delete)
    api.apply(BOTH)
    api.log.ranges["power.dead-letter"] = LogRange({0: 0}, {0: 17})
    assert "another deletion of the dead letters" in detail(api, "DELETE", "/v1/jobs/power?dead_letters=true")
    assert answers == ["older", "newer", 503]
    assert "are being deleted" in api.apply(PIPELINE).json()["detail"], "by the newer one"


@pytest.mark.guarantee(
    "G743",
    "Deleting a stream deletes no topic of the next stream with its name. Such a stream is refused while the topic is "
    "being deleted or after that failed, until the topic is deleted or an operator keeps it.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_a_stream_is_not_applied_while_the_topic_of_the_deleted_one_is_being_deleted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream got the old topic, which was then deleted."""
    delete, told = Admin.delete, list[str]()

    def slowly(self: Admin, topic: str) -> None:
        told.append(api.apply(STREAM).json()["detail"])
        delete(self, topic)

    api.apply(STREAM)
    monkeypatch.setattr(Admin, "delete", slowly)
    assert api.ask("DELETE", "/v1/streams/turbines").status_code == 200
    assert len(told) == 1 and "If the deletion has failed, run strandline stream delete turbines" in told[0]
    assert api.outcomes(STREAM) == ["created"]
    assert api.ledger.stream("turbines").topic_id == "id-2"


@pytest.mark.guarantee("G743")
def test_a_stream_whose_topic_kafka_does_not_delete_is_applied_once_the_topic_is_to_stay(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Admin, topic: str) -> None:
        raise Conflict(f"topic {topic} could not be deleted: Kafka refused it (TOPIC_DELETION_DISABLED)")

    api.apply(STREAM)
    monkeypatch.setattr(Admin, "delete", refuse)
    assert "TOPIC_DELETION_DISABLED" in detail(api, "DELETE", "/v1/streams/turbines")
    assert "strandline stream delete turbines --keep-topic" in api.apply(STREAM).json()["detail"]
    assert api.ask("DELETE", "/v1/streams/turbines?keep_topic=true").json() == {"stream": "turbines", "topic": "kept"}
    assert "no stream turbines" in detail(api, "DELETE", "/v1/streams/turbines?keep_topic=true", 404)
    assert api.outcomes(STREAM) == ["created"]
    assert api.ledger.stream("turbines").topic_id == "id-1"
