"""A plan tells what an apply refuses, in the same words, and what it would say. Real ledger, doubles for the servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strandline.core.errors import NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.admin import Hazard, HazardKind, TopicDescription
from strandline.services.cli import commands
from tests.support.control import BOTH, PIPELINE, STREAM, Admin, Api, MadeTopic, ObedientSupervisor, serving

LOOKUP = """\
lookup: sites
schema: {turbine: string, rated: double}
key: turbine
rows:
  - {turbine: A, rated: 100}
"""
WHOLE_STREAM = STREAM.replace("power: double", "power: integer")
WITH_LOOKUP = PIPELINE.replace("steps:", "steps:\n  - enrich: {lookup: sites, key: turbine, add: [rated]}")
MINUTES = PIPELINE.replace("elasticsearch: turbine-minute", "stream: minutes")
COUNTS = MINUTES.replace(", peak: max(power)", "")
HOURS = """\
pipeline: hours
input: {stream: minutes}
event_time: {field: window_start, delay: 0s}
steps:
  - window: {name: per_hour, tumbling: 1h, by: [turbine], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: hours}]
"""
TO_HOURS = HOURS.replace("elasticsearch: hours", "stream: hours")
BACK = TO_HOURS.replace("minutes", "hours_").replace("hours", "minutes").replace("minutes_", "hours")
BESIDE = """\
pipeline: beside
inputs:
  - {stream: turbines, event_time: {field: ts, delay: 10s}}
  - {stream: minutes, event_time: {field: window_start, delay: 0s}}
steps:
  - window: {name: of_results, tumbling: 1h, by: [turbine], aggregate: {n: sum(n)}}
    from: minutes
    emit: [{elasticsearch: of-results}]
"""
FOLLOWED = f"{STREAM}key: turbine\n"
RESULTS = "stream: minutes\nschema: {turbine: string, n: long, window_start: timestamp, window_end: timestamp}\n"
ENRICHED = """\
pipeline: enriched
input: {stream: turbines}
event_time: {field: ts, delay: 10s}
steps:
  - enrich: {lookup: newest, key: turbine, add: {latest: power}}
  - window: {name: of_latest, tumbling: 1m, by: [turbine], aggregate: {latest: max(latest)}}
    emit: [{elasticsearch: latest}]
"""
FOLLOWING = """\
lookup: newest
source: {stream: turbines}
schema: {turbine: string, power: double}
key: turbine
"""


def together(*documents: str) -> str:
    return "---\n".join(documents)


def nothing(api: Api) -> None:
    """Leave everything as it was applied."""


def topic_made_anew(api: Api) -> None:
    api.topics.id_of["turbines"] = "id-2"


def topic_lost(api: Api) -> None:
    del api.topics.id_of["turbines"]


def results_topic_lost(api: Api) -> None:
    del api.topics.id_of["minutes"]


def topic_compacted(api: Api) -> None:
    api.topics.policy = "compact"


def deleted(api: Api) -> None:
    """The job is deleted, and its results stay."""
    api.ledger.add_result_index("power", "turbine-minute-2026.11")
    assert api.ask("POST", "/v1/jobs/power/stop").status_code == 202
    answer = api.ask("DELETE", "/v1/jobs/power")
    assert answer.status_code == 200, answer.text


REFUSED = {
    "a field's type": (BOTH, nothing, STREAM.replace("power: double", "power: long")),
    "a type that changes that of a result": (
        together(WHOLE_STREAM, PIPELINE),
        nothing,
        together(STREAM, PIPELINE),
    ),
    "a stream whose topic was recreated": (BOTH, topic_made_anew, STREAM),
    "a stream whose topic was lost": (BOTH, topic_lost, STREAM),
    "a pipeline over a lost topic": (BOTH, topic_lost, PIPELINE),
    "a pipeline over a recreated topic": (BOTH, topic_made_anew, PIPELINE),
    "a pipeline that emits to a lost topic": (together(STREAM, RESULTS, MINUTES), results_topic_lost, MINUTES),
    "a lookup that follows a lost topic": (FOLLOWED, topic_lost, FOLLOWING),
    "a stream that a lookup follows": (together(FOLLOWED, FOLLOWING), nothing, FOLLOWED.replace("power: double", "w: double")),
    "a stream of results that can't hold them": (
        together(STREAM, MINUTES),
        nothing,
        "stream: minutes\nschema: {turbine: string, n: long, peak: long, window_start: timestamp, window_end: timestamp}\n",
    ),
    "a lookup's type": (
        together(STREAM, LOOKUP, WITH_LOOKUP),
        nothing,
        LOOKUP.replace("rated: double", "rated: long"),
    ),
    "a compacted topic": (STREAM, topic_compacted, PIPELINE),
    "a taken alias": (BOTH, nothing, PIPELINE.replace("pipeline: power", "pipeline: force")),
    "an alias twice in one text": (STREAM, nothing, together(PIPELINE, PIPELINE.replace("pipeline: power", "pipeline: a"))),
    "a circle": (together(RESULTS, TO_HOURS), nothing, BACK),
    "results for one that takes them for records": (together(STREAM, RESULTS, BESIDE), nothing, COUNTS),
    "results of a deleted job": (BOTH, deleted, PIPELINE.replace("pipeline: power", "pipeline: force")),
    "a range in the future": (STREAM, nothing, PIPELINE.replace("{stream: turbines}", "{stream: turbines, end: 2999-01-01}")),
    "what the job has begun with": (BOTH, nothing, PIPELINE.replace("n: count(*)", "n: avg(power)")),
}  # fmt: skip


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger, ObedientSupervisor(ledger))
    ledger.close()


def plan_of(api: Api, text: str) -> dict[str, Any]:
    answer = api.ask("POST", "/v1/documents/plan", content=text, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 200, answer.text
    plan: dict[str, Any] = answer.json()
    return plan


def forbidden(plan: dict[str, Any]) -> list[dict[str, str]]:
    changes = [change for one in [*plan.get("documents", []), *plan["jobs"]] for change in one["changes"]]
    return [change for change in changes if change["effect"] == "forbidden"]


def registered(api: Api) -> list[tuple[str, int]]:
    ledger = api.ledger
    return [(row.name, row.version) for row in [*ledger.streams(), *ledger.lookups(), *ledger.jobs()]]


@pytest.mark.guarantee(
    "G700",
    "A plan forbids exactly the documents that apply refuses before a change, with the same message, and has the same "
    "notes. If one document is refused, none is applied.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_plan_forbids_what_an_apply_refuses_and_says_the_same(
    api: Api, case: tuple[str, Callable[[Api], None], str]
) -> None:
    before, prepare, text = case
    assert api.apply(before).status_code == 200
    prepare(api)
    there = registered(api)
    changes = forbidden(plan_of(api, text))
    answer = api.apply(text)
    assert answer.status_code == 409, answer.text
    detail = answer.json()["detail"]
    assert changes, f"the plan forbids nothing, and the apply says: {detail}"
    told = changes[0]
    assert told["reason"] == detail or f"can't change {told['change']} ({told['reason']})" in detail
    assert registered(api) == there


@pytest.mark.guarantee("G700")
@pytest.mark.parametrize(
    ("before", "text"),
    [
        (BOTH, STREAM.replace("power: double", "power: double?")),
        (together(WHOLE_STREAM, PIPELINE.replace("max(power)", "max(cast(power as double))")), STREAM),
        (together(STREAM, LOOKUP, WITH_LOOKUP), LOOKUP.replace("100", "50")),
        (STREAM, together(LOOKUP, WITH_LOOKUP)),
        (BOTH, BOTH),
    ],
)
def test_a_plan_of_what_an_apply_takes_has_its_notes_and_forbids_nothing(api: Api, before: str, text: str) -> None:
    assert api.apply(before).status_code == 200
    plan = plan_of(api, text)
    applied = api.apply(text).json()["applied"]
    assert forbidden(plan) == []
    found = {(one["kind"], one["name"]): one["notes"] for one in plan["documents"]}
    assert found == {(one["kind"], one["name"]): one["notes"] for one in applied if one["kind"] != "pipeline"}
    assert [one["outcome"] for one in plan["jobs"]] == [one["outcome"] for one in applied if one["kind"] == "pipeline"]


def test_a_plan_says_that_a_topic_goes_by_its_senders_times(api: Api) -> None:
    api.topics.has_senders_times = True
    api.apply(STREAM)
    (stream,) = plan_of(api, STREAM)["documents"]
    assert "message.timestamp.type=CreateTime" in stream["notes"][0]


@pytest.mark.guarantee(
    "G769",
    "A topic whose settings can lose confirmed records is named with the setting and the remedy: by `apply` if the "
    "topic existed before, and by the doctor at any time. `apply` notes a single replica, and the doctor warns of it "
    "if there are several brokers.",
    promise="failures-are-reported-with-their-remedy",
)
def test_a_topic_that_can_lose_confirmed_records_is_noted(api: Api) -> None:
    api.topics.hazards = (
        Hazard(HazardKind.UNCLEAN_LEADER, "topic turbines has unclean.leader.election.enable=true", "change it"),
        Hazard(HazardKind.ONE_REPLICA, "topic turbines has one replica", "add replicas"),
    )
    api.topics.id_of["turbines"] = "id-of-an-existing-topic"
    unclean = "topic turbines has unclean.leader.election.enable=true; change it"
    adopted = [unclean, "topic turbines has one replica; add replicas"]
    (planned,) = plan_of(api, STREAM)["documents"]
    (applied,) = api.apply(STREAM).json()["applied"]
    assert planned["notes"] == applied["notes"] == adopted
    (again,) = api.apply(STREAM).json()["applied"]
    assert again["notes"] == [unclean], "the single replica is noted once, where the topic is adopted"


def test_every_refusal_of_a_text_is_in_its_plan(api: Api) -> None:
    api.apply(BOTH)
    text = together(
        STREAM.replace("power: double", "power: long"), PIPELINE.replace("pipeline: power", "pipeline: force")
    )
    plan = plan_of(api, text)
    assert [change["effect"] for one in plan["documents"] for change in one["changes"]] == ["forbidden"]
    (job,) = plan["jobs"]
    assert "because stage per_minute of power emits to it" in job["changes"][0]["reason"]


@pytest.mark.guarantee("G700")
def test_a_stream_is_refused_before_anything_is_changed(api: Api) -> None:
    """That the topic of one was recreated was found when others were already registered."""
    api.apply(STREAM)
    topic_made_anew(api)
    assert api.apply(together(STREAM.replace("turbines", "mills"), STREAM)).status_code == 409
    assert registered(api) == [("turbines", 1)]


@pytest.mark.guarantee(
    "G996",
    "If the topic of a registered stream was lost or recreated, `apply` refuses the stream, and the pipelines and lookups that "
    "use it, before a change. No topic is created. The commands in the refusal free the name of the stream.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize("prepare", [topic_lost, topic_made_anew])
def test_the_commands_of_a_refusal_free_the_name_of_a_lost_topic(
    api: Api, prepare: Callable[[Api], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = together(FOLLOWED, RESULTS, COUNTS, HOURS, FOLLOWING, ENRICHED)
    assert api.apply(documents).status_code == 200
    prepare(api)
    monkeypatch.setattr(Admin, "describe", described)
    topics = dict(api.topics.id_of)
    detail = api.apply(documents).json()["detail"]
    assert api.topics.id_of == topics, "a refused apply creates no topic"
    commands = re.findall(r"strandline (job|lookup|stream) (stop|delete) ([a-z_]+)( --keep-topic)?", detail)
    deleted = [name for _, verb, name, _ in commands if verb == "delete"]
    assert deleted == ["enriched", "hours", "power", "newest", "turbines"]
    assert commands[-1][-1] == ("" if prepare is topic_lost else " --keep-topic")
    for sort, verb, name, keep in commands:
        path = f"/v1/{sort}s/{name}"
        answer = (
            api.ask("POST", f"{path}/stop")
            if verb == "stop"
            else api.ask("DELETE", path + "?keep_topic=1" * bool(keep))
        )
        assert answer.is_success, answer.text
    assert api.outcomes(FOLLOWED) == ["created"]
    expected = "id-2" if prepare is topic_made_anew else api.topics.id_of["turbines"]
    assert api.ledger.stream("turbines").topic_id == expected
    renamed = PIPELINE.replace("pipeline: power", "pipeline: power_2").replace("turbine-minute", "turbine-minute-2")
    assert api.outcomes(together(FOLLOWING, renamed)) == ["created", "created"]


def test_a_topic_that_is_lost_while_its_stream_is_applied_is_not_created(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.apply(BOTH)
    ensure = api.topics.ensure_stream_topic

    def overtaken(spec: StreamSpec, *, creates: bool = True) -> MadeTopic:
        topic_lost(api)
        return ensure(spec, creates=creates)

    monkeypatch.setattr(api.topics, "ensure_stream_topic", overtaken)
    answer = api.apply(STREAM)
    assert answer.status_code == 409
    assert "its topic does not exist any more" in answer.json()["detail"]
    assert "turbines" not in api.topics.id_of


def described(self: Admin, topic: str) -> TopicDescription:
    """Describe only topics that exist."""
    if topic not in self._topics.id_of:
        raise NotFound(f"no topic {topic}")
    return TopicDescription(topic, self._topics.id_of[topic], 2)


def test_the_command_line_shows_what_is_refused_and_fails_and_the_notes(api: Api, tmp_path: Path) -> None:
    api.apply(BOTH)
    file = tmp_path / "a.yaml"
    with serving(api.app) as url:
        for text, code, told in (
            (
                STREAM.replace("power: double", "power: long"),
                1,
                ("stream turbines", "forbidden", "power from double to long"),
            ),
            (
                STREAM.replace("power: double", "power: double?"),
                0,
                ("stream turbines", "note", "uses this version from its next slice"),
            ),
        ):
            file.write_text(text)
            shown = CliRunner().invoke(commands.app, ["apply", str(file), "--plan", "--url", url])
            assert shown.exit_code == code, shown.output
            assert all(word in " ".join(shown.output.split()) for word in told), shown.output
