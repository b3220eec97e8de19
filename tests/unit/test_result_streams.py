"""Streams of results when documents are applied: what is registered, what fits, who owns a stream, who is restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from strandline.core.errors import LedgerUnavailable
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.admin import TopicDescription
from strandline.processing.emission.fencing import slots_of_older_runs
from strandline.processing.pipelines.result_streams import emitter_of
from strandline.services.jobs.applying.results_read import find_circle
from strandline.services.jobs.checking import check_without_stack
from tests.support.control import STREAM, Api, MadeTopic
from tests.support.ledgers import a_checkpoint, a_slice
from tests.unit.test_api import problem_of

MINUTES = """\
pipeline: minutes
input: {stream: turbines}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*), peak: max(power)}}
    emit: [{stream: turbine-minute}, {elasticsearch: turbine-minute}]
"""
HOURS = """\
pipeline: hours
input: {stream: turbine-minute}
event_time: {field: window_start, delay: 0s}
steps:
  - window: {name: per_hour, tumbling: 1h, by: [turbine], aggregate: {n: sum(n), peak: max(peak)}}
    emit: [{stream: turbine-hour}]
"""
SCHEMA = "{turbine: string, n: long, peak: double, window_start: timestamp, window_end: timestamp}"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def refused(api: Api, text: str) -> list[str]:
    problem = problem_of(api.apply(text), 422, "invalid_document")
    return [error["detail"] for error in problem["errors"]]


@pytest.mark.parametrize("documents", [(STREAM, MINUTES, HOURS), (HOURS, MINUTES, STREAM)], ids=["in order", "turned"])
def test_a_cascade_over_two_jobs_is_applied_in_one_file(api: Api, documents: tuple[str, ...]) -> None:
    """The streams between them are made from the stages, for any order of the documents."""
    answer = api.apply("---\n".join(documents))
    assert [(one["kind"], one["name"], one["outcome"]) for one in answer.json()["applied"]] == [
        ("stream", "turbines", "created"),
        ("stream", "turbine-minute", "created"),
        ("stream", "turbine-hour", "created"),
        ("pipeline", "minutes", "created"),
        ("pipeline", "hours", "created"),
    ], answer.text
    document = api.ledger.stream("turbine-minute").document
    assert {name: (field["type"], field["required"]) for name, field in document["schema"].items()} == {
        "turbine": ("string", True),
        "n": ("long", False),
        "peak": ("double", False),
        "window_start": ("timestamp", True),
        "window_end": ("timestamp", True),
    }
    assert (document["key"], document["partitions"], document["retention"]) == ("turbine", 4, "1w")
    assert set(api.outcomes("---\n".join(documents))) == {"unchanged"}
    api.topics.has_room.clear()
    assert set(api.outcomes(MINUTES)) == {"unchanged"}
    assert api.topics.has_room == ["turbine-minute"], "an older topic takes the largest record, too"
    api.log.ranges["turbine-minute"] = api.log.ranges["turbines"]
    shown = [api.ask("GET", f"/v1/streams/{name}").json()["emitted_by"] for name in ("turbine-minute", "turbines")]
    assert shown == ["minutes", None]
    assert (emitter_of(api.ledger, "turbine-minute"), emitter_of(api.ledger, "turbines")) == ("minutes", None)


@pytest.mark.parametrize(
    "made",
    [
        '  - window: {name: w, tumbling: 10s, aggregate: {turbine: "last(turbine) filter (where power > 5)"}}',
        "  - drop: [turbine]\n  - derive: {turbine: \"nullif(site, 'x')\"}",
    ],
    ids=["an aggregate", "derived"],
)
def test_a_field_that_is_made_anew_may_be_null_in_the_stream(api: Api, made: str) -> None:
    """Though the stream that is read requires one of this name."""
    stream = STREAM.replace("  turbine: string\n", "  turbine: string\n  site: string\n")
    assert "site: string" in stream
    window = "  - window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*)}}"
    text = f"{MINUTES[: MINUTES.index('  - window')]}{made}\n{window}\n    emit: [{{stream: turbine-minute}}]\n"
    answer = api.apply("---\n".join((stream, text)))
    assert answer.status_code == 200, answer.text
    schema = api.ledger.stream("turbine-minute").document["schema"]
    assert (schema["turbine"]["required"], schema["window_end"]["required"]) == (False, True)


def test_a_document_of_the_stream_goes_before(api: Api) -> None:
    own = f"stream: turbine-minute\npartitions: 1\nretention: 30d\nschema: {SCHEMA}\n"
    api.apply("---\n".join((STREAM, MINUTES, own)))
    document = api.ledger.stream("turbine-minute").document
    assert (document["partitions"], document["retention"], "key" in document) == (1, "4w2d", False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("n: long", "n: double"), "its field n is a double, but a long in the results"),
        (("n: long", 'n: "double?"'), "its field n is a double, but a long in the results"),
        (("n: long", "m: long"), "its field m is required, but the results don't have it"),
        ((SCHEMA, SCHEMA.replace("}", ', m: "long?"}') + "\nkey: m"), "its key m is not a field of the results"),
        ((SCHEMA, SCHEMA + "\nudp: {port: 9999}"), "UDP port 9999 writes to it"),
    ],
)
def test_a_stream_that_does_not_fit_the_results_is_refused(api: Api, change: tuple[str, str], reason: str) -> None:
    own = f"stream: turbine-minute\nschema: {SCHEMA}\n".replace(*change)
    expected = [f"stream 'turbine-minute' can't contain the results of 'per_minute': {reason}"]
    assert refused(api, "---\n".join((STREAM, MINUTES, own))) == expected
    api.apply(STREAM)
    api.apply(own)
    assert refused(api, MINUTES) == expected


def test_more_fields_than_the_schema_has_are_fine(api: Api) -> None:
    schema = SCHEMA.replace("n: long", 'more: "long?"')
    own = f"stream: turbine-minute\nschema: {schema}\n"
    assert api.apply("---\n".join((STREAM, MINUTES, own))).status_code == 200


def test_what_is_wrong_with_the_emitter_is_not_told_again_of_those_that_read_it(api: Api) -> None:
    (message,) = refused(api, "---\n".join((STREAM, MINUTES.replace("max(power)", "max(force)"), HOURS)))
    assert "force" in message


def test_a_stream_has_one_owner(api: Api) -> None:
    api.apply(f"{STREAM}---\n{MINUTES}")
    other = MINUTES.replace("pipeline: minutes", "pipeline: others").replace(", {elasticsearch: turbine-minute}", "")
    problem = problem_of(api.apply(other), 409, "conflict")
    assert "can't emit to stream turbine-minute, because stage per_minute of minutes emits to it" in problem["detail"]


@pytest.mark.guarantee(
    "G621",
    "The index of an emission's open windows has one owner. No other emission uses its name, whichever is applied "
    "first.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_index_of_open_windows_has_one_owner(api: Api, is_turned: bool) -> None:
    """A second job's documents there would be deleted with the windows that close, or the first job's would not be taken."""
    shows = MINUTES.replace("{elasticsearch: turbine-minute}", "{elasticsearch: {name: turbine-minute, updates: 10s}}")
    other = MINUTES.replace("pipeline: minutes", "pipeline: others").replace("{stream: turbine-minute}, ", "")
    other = other.replace("elasticsearch: turbine-minute", "elasticsearch: turbine-minute.open")
    first, second = (other, shows) if is_turned else (shows, other)
    assert api.apply(f"{STREAM}---\n{first}").status_code == 200
    problem = problem_of(api.apply(second), 409, "conflict")
    assert "can't emit to elasticsearch turbine-minute.open, because stage per_minute of" in problem["detail"]
    assert "NAME.open shows what is open of NAME" in problem["detail"]


@pytest.mark.guarantee("G26")
def test_an_application_that_looked_too_early_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job is submitted after this one's documents were checked."""
    other = MINUTES.replace("pipeline: minutes", "pipeline: others")
    api.apply(STREAM)
    ensure = api.topics.ensure_dead_letter_topic

    def overtaken(job: str) -> TopicDescription:
        monkeypatch.undo()
        assert api.apply(other).status_code == 200
        return ensure(job)

    monkeypatch.setattr(api.topics, "ensure_dead_letter_topic", overtaken)
    problem = problem_of(api.apply(MINUTES), 409, "conflict")
    assert "because stage per_minute of others does" in problem["detail"]
    assert [job.name for job in api.ledger.jobs()] == ["others"]


@pytest.mark.guarantee("G710")
def test_a_pipeline_whose_stream_is_deleted_while_it_is_applied_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would be there without its stream, and no answer could be given about any job."""
    ensure = api.topics.ensure_dead_letter_topic

    def overtaken(job: str) -> TopicDescription:
        monkeypatch.undo()
        assert api.ask("DELETE", "/v1/streams/turbine-minute?keep_topic=true").status_code == 200
        return ensure(job)

    monkeypatch.setattr(api.topics, "ensure_dead_letter_topic", overtaken)
    documents = "---\n".join((STREAM, MINUTES))
    assert "Stream turbine-minute was deleted" in problem_of(api.apply(documents), 409, "conflict")["detail"]
    assert api.ask("GET", "/v1/jobs").json() == {"jobs": []}
    assert api.apply(documents).status_code == 200


@pytest.mark.guarantee("G710")
def test_an_entrance_that_another_stream_got_meanwhile_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    document = "stream: {}\nschema: {{n: long}}\nudp: {{port: {}}}\n"
    ensure = api.topics.ensure_stream_topic

    def overtaken(spec: StreamSpec, *, creates: bool = True) -> MadeTopic:
        monkeypatch.undo()
        assert api.apply(document.format("two", 8082)).status_code == 200
        return ensure(spec, creates=creates)

    monkeypatch.setattr(api.topics, "ensure_stream_topic", overtaken)
    problem = problem_of(api.apply(document.format("one", 8082)), 409, "conflict")
    assert "UDP port 8082 belongs to stream two already" in problem["detail"]
    assert [stream.name for stream in api.ledger.streams()] == ["two"]


def test_streams_that_are_applied_together_may_swap_their_entrances(api: Api) -> None:
    document = "stream: {}\nschema: {{n: long}}\nudp: {{port: {}}}\n"
    assert api.outcomes("---\n".join((document.format("one", 1), document.format("two", 2)))) == ["created"] * 2
    assert api.outcomes("---\n".join((document.format("one", 2), document.format("two", 1)))) == ["changed"] * 2


@pytest.mark.guarantee("G710")
def test_a_job_whose_stream_is_gone_hides_no_other(api: Api) -> None:
    """The API deletes no stream that a job reads, but the database is open to other programs."""
    api.apply("---\n".join((STREAM, STREAM.replace("turbines", "others"))))
    api.apply(MINUTES.replace("minutes", "well").replace("turbines", "others").replace("turbine-minute", "well-minute"))
    api.apply(MINUTES)
    api.ledger.delete_stream("turbines", {"minutes": 1, "well": 1})
    well, minutes = sorted(api.ask("GET", "/v1/jobs").json()["jobs"], key=lambda job: job["name"], reverse=True)
    assert (well["name"], well["warnings"]) == ("well", [])
    assert minutes["warnings"] == ["There is no stream turbines; register it with `strandline apply FILE`."]
    assert 'strandline_job_state{job="well"' in api.ask("GET", "/metrics").text
    assert api.ask("POST", "/v1/jobs/minutes/stop").status_code == 202
    assert api.ask("DELETE", "/v1/jobs/minutes").status_code == 200


def test_jobs_that_read_each_other_in_a_circle_are_refused(api: Api) -> None:
    api.apply("---\n".join((f"stream: turbine-minute\nschema: {SCHEMA}\n", HOURS)))
    circle = """\
pipeline: minutes
input: {stream: turbine-hour}
event_time: {field: window_start, delay: 10s}
steps:
  - window: {name: per_minute, tumbling: 1h, by: [turbine], aggregate: {n: sum(n), peak: max(peak)}}
    emit: [{stream: turbine-minute}]
"""
    assert "minutes -> hours -> minutes" in problem_of(api.apply(circle), 409, "conflict")["detail"]


BOTH = """\
pipeline: both
inputs:
  - {stream: turbines, event_time: {field: ts, delay: 10s}}
  - {stream: turbine-minute, event_time: {field: window_start, delay: 0s}}
steps:
  - window: {name: of_results, tumbling: 1h, by: [turbine], aggregate: {n: sum(n)}}
    from: turbine-minute
    emit: [{elasticsearch: of-results}]
"""


@pytest.mark.guarantee(
    "G611",
    "While a job reads results together with streams, the job that emits them can't change their windows or end them. "
    "No job begins to emit to a stream that such a job reads as a stream of senders.",
    promise="unusable-documents-are-refused",
)
def test_a_job_that_reads_results_beside_streams_is_thought_of_when_their_emitter_changes(api: Api) -> None:
    """The job uses the next windows of that stream. Read like a stream of senders, it would lose results."""
    own = f"stream: turbine-minute\nschema: {SCHEMA}\n"
    assert api.apply("---\n".join((STREAM, own, BOTH))).status_code == 200
    told = problem_of(api.apply(MINUTES), 409, "conflict")["detail"]
    assert (
        "job both reads stream turbine-minute and others by the rules for senders, but job minutes would emit results"
        in told
    )
    api.log.ranges["turbine-minute"] = api.log.ranges["turbines"]
    assert api.apply("---\n".join((MINUTES, BOTH))).status_code == 200
    told = problem_of(api.apply(MINUTES.replace("tumbling: 1m", "tumbling: 30s")), 409, "conflict")["detail"]
    assert "windows in stream turbine-minute from 1m to 30s (job both reads them in parallel with other streams" in told
    silent = MINUTES.replace("{stream: turbine-minute}, ", "")
    told = problem_of(api.apply(silent), 409, "conflict")["detail"]
    assert (
        "windows in stream turbine-minute, which will not get new ones (job both reads them in parallel with other streams"
        in told
    )


def test_readers_are_restarted_with_the_change_or_not_at_all(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the change is no reason to apply it again, and applying it again changes nothing."""
    own = f"stream: turbine-minute\nschema: {SCHEMA}\n"
    api.apply("---\n".join((STREAM, own, HOURS)))
    with monkeypatch.context() as patch:
        patch.setattr(api.ledger, "record_event", Mock(side_effect=LedgerUnavailable("the ledger is away")))
        assert api.apply(MINUTES).status_code == 503
    assert api.apply(MINUTES).status_code == 200
    assert api.ledger.job("hours").restarts == 1


def test_a_circle_is_found_through_any_of_several_streams() -> None:
    before = {"minutes": ["fleet", "both"], "both": ["fleet", "minutes"], "fleet": []}
    assert (find_circle(before, "minutes"), find_circle(before, "fleet")) == (["minutes", "both", "minutes"], [])


def test_those_that_read_a_stream_are_restarted_when_another_job_emits_to_it(api: Api) -> None:
    """At their start, their runs check which job emits."""
    own = f"stream: turbine-minute\nschema: {SCHEMA}\n"
    api.apply("---\n".join((STREAM, own, HOURS)))
    api.apply(MINUTES)
    assert api.ledger.job("hours").restarts == 1
    api.apply(MINUTES)
    api.apply(MINUTES.replace("max(power)", "min(power)"))
    assert api.ledger.job("hours").restarts == 1
    api.apply(MINUTES.replace("{stream: turbine-minute}, ", ""))
    assert (api.ledger.job("hours").restarts, emitter_of(api.ledger, "turbine-minute")) == (2, None)


def test_a_new_run_shuts_out_each_slot_of_the_runs_since_the_one_that_committed_last(api: Api) -> None:
    ledger = api.ledger
    api.apply(f"{STREAM}---\n{MINUTES}")
    assert slots_of_older_runs(ledger, ledger.begin_run("minutes", 1)) == []
    for epoch, slots in ((1, 8), (2, 3), (3, 0), (4, 2)):
        if epoch > 1:
            ledger.begin_run("minutes", epoch)
        ledger.set_run_slots("minutes", epoch, slots)
        if epoch == 2:
            ledger.plan_slice(a_slice(1, 2, "minutes"))
            ledger.commit_checkpoint(a_checkpoint(1, 2, "minutes"))
    dead = "minutes.dead-letter"
    assert slots_of_older_runs(ledger, ledger.begin_run("minutes", 5)) == [
        place
        for slot in range(3)
        for place in (
            (f"{dead}.record-{slot}", dead),
            (f"{dead}.result-per_minute-{slot}", dead),
            (f"minutes:result:per_minute:turbine-minute:{slot}", "turbine-minute"),
        )
    ]


def test_a_cascade_over_two_jobs_is_checked_without_a_stack() -> None:
    """The stream between them is in no document, and no server must be asked for it."""
    both = check_without_stack("---\n".join((STREAM, MINUTES, HOURS)).encode(), "farm.yaml")
    assert both is not None and both.problems == []
    assert [stage.emits for stage in both.stages] == [
        ["stream: turbine-minute", "elasticsearch: turbine-minute"],
        ["stream: turbine-hour"],
    ]
    assert check_without_stack(HOURS.encode(), "farm.yaml") is None
