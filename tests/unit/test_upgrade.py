"""Changes between two versions of a pipeline, and the meaning of each change."""

from __future__ import annotations

import pytest

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.upgrade import Effect, changes_between

STREAM = """
stream: s
schema:
  device: string
  ts: {type: timestamp, unit: ms}
  seen: {type: timestamp, unit: ms}
  power: double
  n: long
"""
PIPELINE = """
pipeline: p
input: {stream: s}
event_time: {field: ts, delay: 10s, idle_timeout: 30s}
steps:
  - derive: {load: power * 2}
  - where: load < 10
  - window: {name: minute, tumbling: 1m, by: [device], aggregate: {n: count(*), peak: max(load)}}
    emit: [{elasticsearch: minute}]
  - window: {name: hour, tumbling: 1h, by: [device], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: hour}]
"""


def checked(text: str) -> CheckedPipeline:
    stream = StreamSpec.parse(
        read_documents(STREAM.replace("stream: s", f"stream: {text.split('stream: ')[1][0]}"), "s.yaml")[0]
    )
    (document,) = read_documents(text, "p.yaml")
    return check(PipelineSpec.parse(document), stream, document)


def effects(*changes: tuple[str, str]) -> dict[str, Effect]:
    text = PIPELINE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return {change.change: change.effect for change in changes_between(checked(PIPELINE), checked(text))}


def test_branches_come_and_go():
    """A stage is known by its name, wherever it takes its rows from."""
    hour = (
        "  - window: {name: hour,",
        "  - window: {name: site, tumbling: 5m, by: [device], aggregate: {n: sum(n)}}\n",
    )
    added = (hour[0], f"{hour[1]}    emit: [{{elasticsearch: site}}]\n    from: minute\n{hour[0]}")
    assert effects(added) | {
        "window hour takes the results of site, not the results of minute": Effect.REWIND
    } == effects(added)
    named = ("emit: [{elasticsearch: hour}]", "emit: [{elasticsearch: hour}]\n    from: minute")
    assert effects(added, named) == {
        "window site is new": Effect.REWIND,
        "results to elasticsearch site": Effect.SAFE,
    }
    of_records = (
        "{n: sum(n)}}\n    emit: [{elasticsearch: hour}]",
        "{n: count(*)}}\n    emit: [{elasticsearch: hour}]\n    from: s",
    )
    assert effects(of_records)["window hour takes records, not the results of minute"] is Effect.REWIND


def test_the_same_in_other_words_is_no_change():
    assert effects(("- derive: {load: power * 2}", "- derive: {load: power * 2}\n    name: x\n    from: s")) == {}
    assert effects(("10s", "10000ms"), ("pipeline: p", "# a comment\npipeline: p")) == {}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("tumbling: 1m", "tumbling: 2m"), "window minute from 1m to 2m"),
        (("tumbling: 1m", "sliding: {size: 1m, every: 5s}"), "window minute from 1m to 1m every 5s"),
        (("tumbling: 1h", "sliding: {size: 1h, every: 1m}"), "window hour from 1h to 1h every 1m"),
        (
            ("tumbling: 1h", "session: {gap: 5m}"),
            "window hour from 1h to sessions with a gap of 5m, 1h at most",
        ),
        (("load < 10", "load < 11"), "the steps before window minute"),
        (("power * 2", "power * 3"), "the steps before window minute"),
        (("peak: max(load)", "peak: min(load)"), "the aggregates of window minute"),
        (("peak: max(load)", "peak: max(load), low: min(load)"), "the aggregates of window minute"),
    ],
)
def test_how_windows_are_made_is_a_rewind(change, what):
    assert effects(change) == {what: Effect.REWIND}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("tumbling: 1d", "tumbling: 1d, offset: 6h", "1d to 1d, 6h later"),
        ("tumbling: 1d", "tumbling: 1d, tz: Europe/Berlin", "1d to 1d, in Europe/Berlin"),
        (
            "tumbling: 1d, tz: Europe/Berlin",
            "tumbling: 1d, tz: Asia/Tokyo",
            "1d, in Europe/Berlin to 1d, in Asia/Tokyo",
        ),
        (
            "sliding: {size: 1h, every: 1m}",
            "cumulative: {size: 1h, step: 1m}",
            "1h every 1m to 1h every 1m, cumulative",
        ),
        (
            "sliding: {size: 1h, every: 30s}",
            "session: {gap: 30s, max: 1h}",
            "1h every 30s to sessions with a gap of 30s, 1h at most",
        ),
    ],
)
def test_windows_of_the_same_lengths_may_be_others(old: str, new: str, what: str) -> None:
    before, after = (
        checked(PIPELINE.replace("tumbling: 1m", "tumbling: 10s").replace("tumbling: 1h", window))
        for window in (old, new)
    )
    found = [(change.change, change.effect) for change in changes_between(before, after)]
    assert found == [(f"window hour from {what}", Effect.REWIND)]
    assert changes_between(before, before) == []


def test_windows_come_and_go():
    assert effects(("name: hour", "name: hourly")) == {
        "window hour is gone": Effect.SAFE,
        "window hourly is new": Effect.REWIND,
    }


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("field: ts", "field: seen"), "event time from field ts to field seen"),
        (("field: ts", "field: ts, else: log"), "event time from field ts to field ts, or log time"),
        (("stream: s", "stream: t"), "input from stream s to t"),
    ],
)
def test_what_the_recorded_slices_rest_on_stays(change, what):
    assert effects(change)[what] is Effect.FORBIDDEN


@pytest.mark.guarantee("G25")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("delay: 10s", "delay: 5s"), "delay from 10s to 5s"),
        (("delay: 10s", "delay: 20s"), "delay from 10s to 20s"),
        (("field: ts,", "field: ts, watermark: newest,"), "watermark from partitions to newest"),
        (("field: ts,", "field: ts, max_ahead: 1m,"), "max_ahead from 5m to 1m"),
        (("idle_timeout: 30s", "idle_timeout: null"), "idle_timeout from 30s to never"),
    ],
)
def test_the_rule_of_event_time_is_recorded_with_each_slice_so_it_may_change(change, what):
    assert effects(change) == {what: Effect.SAFE}


def test_a_plan_says_what_a_larger_max_ahead_means() -> None:
    """Nothing recorded is affected, so the change is safe, but later correct records can be late."""
    reasons = {}
    for limit in ("12h", "null", "1m"):
        changed = checked(PIPELINE.replace("field: ts,", f"field: ts, max_ahead: {limit},"))
        (change,) = changes_between(checked(PIPELINE), changed)
        reasons[limit] = change.reason
    assert "Records up to 12h in the future then count" in reasons["12h"]
    assert "Records in the future then count" in reasons["null"]
    for limit in ("12h", "null"):
        assert "later correct records may be late" in reasons[limit]
    assert reasons["1m"] == "counts from the next slice on"


def test_a_field_of_results_that_are_there_keeps_its_type():
    found = effects(("n: sum(n)", "n: avg(n)"))
    assert found["field n in elasticsearch hour from long to double"] is Effect.FORBIDDEN
    assert next(iter(found.values())) is Effect.FORBIDDEN
    assert (
        Effect.FORBIDDEN
        not in effects(("n: sum(n)", "n: avg(n)"), ("elasticsearch: hour", "elasticsearch: hourly")).values()
    )


def test_what_the_readers_of_a_stream_of_results_rely_on_stays():
    """The fields with their types stay, and no result becomes late.

    For readers that use the start of windows, results of long sessions would be late. New fields and shorter windows
    remove nothing.
    """
    text = PIPELINE[: PIPELINE.index("  - window: {name: hour")].replace("elasticsearch: minute", "stream: minute")

    def changed(old: str, new: str) -> dict[str, Effect]:
        before, after = checked(text), checked(text.replace(old, new))
        return {change.change: change.effect for change in changes_between(before, after)}

    assert changed("n: count(*), peak", "peak")["no field n in stream minute any more"] is Effect.FORBIDDEN
    assert changed("n: count(*)", "n: avg(load)")["field n in stream minute from long to double"] is Effect.FORBIDDEN
    assert changed("g: 1m", "g: 2m")["longer windows in stream minute, from 1m to 2m"] is Effect.FORBIDDEN
    slides = "sliding: {size: 90s, every: 30s}"
    assert changed("tumbling: 1m", slides)["longer windows in stream minute, from 1m to 1m30s"] is Effect.FORBIDDEN
    for moving in ("session: {gap: 10s, max: 30s}", "count: {size: 3, max: 1m}"):
        found = changed("tumbling: 1m", moving)
        (what,) = (one for one in found if one.startswith("windows in stream minute that end where records end"))
        assert found[what] is Effect.FORBIDDEN
    sessions = text.replace("tumbling: 1m", "session: {gap: 10s, max: 1m}")
    of_sessions = changes_between(checked(sessions), checked(sessions.replace("gap: 10s", "gap: 5s")))
    assert Effect.FORBIDDEN not in {change.effect for change in of_sessions}
    more_often = ("tumbling: 1m", "sliding: {size: 1m, every: 5s}")
    for safe in (
        ("g: 1m", "g: 30s"),
        more_often,
        ("peak: max", "low: min(load), peak: max"),
        ("stream: minute", "stream: other"),
    ):
        assert Effect.FORBIDDEN not in changed(*safe).values()


def test_where_results_go_and_what_is_done_with_bad_records_is_safe():
    assert set(effects(("[{elasticsearch: hour}]", "[{elasticsearch: other}]")).values()) == {Effect.SAFE}
    assert effects(
        ("idle_timeout: 30s", "idle_timeout: 40s"),
        ("steps:", "late: drop\nplacement: pool\ndead_letters: {max_documents: 5}\nsteps:"),
    ) == {
        "idle_timeout from 30s to 40s": Effect.SAFE,
        "late or on_error": Effect.SAFE,
        "placement": Effect.SAFE,
        "dead_letters": Effect.SAFE,
    }


def test_where_results_are_those_of_one_stage_stay() -> None:
    """Results from before keep their meaning; only the name of their stage can change."""
    swapped = (
        ("elasticsearch: minute", "elasticsearch: other"),
        ("elasticsearch: hour", "elasticsearch: minute"),
        ("elasticsearch: other", "elasticsearch: hour"),
    )
    assert effects(*swapped) == {
        "elasticsearch minute from results of minute to those of hour": Effect.FORBIDDEN,
        "elasticsearch hour from results of hour to those of minute": Effect.FORBIDDEN,
    }
    branch = (
        PIPELINE.replace("tumbling: 1h", "tumbling: 1m")
        .replace("  - window: {name: hour", "  - from: s\n    window: {name: hour")
        .replace("sum(n)", "max(power)")
    )
    found = changes_between(checked(branch), checked(branch.replace("minute}", "x}").replace("hour}", "minute}")))
    assert ("elasticsearch minute from results of minute to those of hour", Effect.FORBIDDEN) in [
        (change.change, change.effect) for change in found
    ]
    first = branch[branch.index("  - derive") : branch.index("  - from: s")]
    alone = branch.replace(first, "").replace("elasticsearch: hour", "elasticsearch: minute")
    assert ("elasticsearch minute from results of minute to those of hour", Effect.FORBIDDEN) in [
        (change.change, change.effect) for change in changes_between(checked(branch), checked(alone))
    ]
    renamed = ("name: hour", "name: hourly")
    assert Effect.FORBIDDEN not in effects(renamed).values()
    another = effects(renamed, ("tumbling: 1h", "tumbling: 2h"))
    assert another["elasticsearch hour from results of hour to those of hourly"] is Effect.FORBIDDEN


def test_emissions_of_the_same_records_may_be_split_and_joined() -> None:
    """One without a name is called after its first place. Of other records, the place is another emission's."""
    window = PIPELINE.index("  - window: {name: minute")
    start, windows = PIPELINE[:window], PIPELINE[window:]
    one = f"{start}  - emit: [{{elasticsearch: raw}}, {{stream: clean}}]\n{windows}"
    raw, clean = "  - emit: [{elasticsearch: raw}]\n", "  - emit: [{stream: clean}]\n"
    two = f"{start}{raw}{clean}{windows}"
    moved = two.replace("steps:\n", "steps:\n  - emit: [{elasticsearch: first}]\n")
    for before, after in ((one, two), (two, one), (one, moved)):
        found = changes_between(checked(before), checked(after))
        assert Effect.FORBIDDEN not in {change.effect for change in found}
    others = f"{start}{raw}  - where: load < 5\n{clean}{windows}"
    for before, after, names in ((one, others, "raw to those of clean"), (others, one, "clean to those of raw")):
        found = changes_between(checked(before), checked(after))
        refused = [change.change for change in found if change.effect is Effect.FORBIDDEN]
        assert refused == [f"stream clean from results of {names}"]


def test_the_options_of_a_sink_are_told() -> None:
    before, after = (
        PIPELINE.replace("elasticsearch: hour", f"sink: {{use: lake, name: hour, options: {{level: {level}}}}}")
        for level in (1, 2)
    )
    (change,) = changes_between(checked(before), checked(after))
    assert (change.change, change.effect) == ("the options of sink lake:hour", Effect.SAFE)


def test_the_settings_of_indices_count_for_those_that_are_made_later():
    change = ("elasticsearch: hour", "elasticsearch: {name: hour, shards: 2}")
    assert effects(change) == {"the settings of the indices of hour": Effect.SAFE}
