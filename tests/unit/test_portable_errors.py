"""An error of a package keeps its kind where it leaves a process: on the way to Spark's driver, in a pool, and pickled."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from strandline.core import errors
from strandline.core.errors import (
    BadRecord,
    Divergence,
    InvalidDocument,
    LogUnavailable,
    PermanentError,
    Problem,
    SinkUnavailable,
    StrandlineError,
    TransientError,
)
from strandline.core.portable_errors import CLASSES, typed_for_driver
from strandline.processing.backfill import emission as backfill_emission
from strandline.processing.backfill.emission import ChunkReader, ChunkTask
from strandline.processing.emission import keyed_task
from strandline.processing.emission.keyed_task import KeyedTask
from strandline.processing.emission.member_outcomes import Failure
from strandline.processing.source.spark_source import StreamSource
from strandline.processing.spark.errors import typed_error
from strandline.services.processes.limited_work import Outcome
from strandline.services.processes.limited_worker import _run as run_call


class Busy(TransientError):
    """A package's error: with a constructor of its own, and an attribute that can't be pickled."""

    def __init__(self, host: str, seconds: int) -> None:
        super().__init__(f"{host} is busy\nfor {seconds} s")
        self.connection = lambda: None


class Gone(SinkUnavailable):
    pass


class Full(PermanentError):
    pass


class Fenced(TransientError):
    """A package's class with the name of one of Strandline's classes, and of another kind."""


class Unreadable(BadRecord):
    pass


class Wrong(InvalidDocument):
    pass


ERRORS = [
    (Busy("db", 7), TransientError, "db is busy for 7 s"),
    (Gone("no answer"), SinkUnavailable, "no answer"),
    (Gone("no answer\nurllib.error.URLError: refused"), SinkUnavailable, "no answer urllib.error.URLError: refused"),
    (Gone(), SinkUnavailable, "Gone (without a message)"),
    (Full("the disk is full"), PermanentError, "the disk is full"),
    (Fenced("the lock is taken"), TransientError, "the lock is taken"),
    (Unreadable("decode", "a bad\nframe", "steps[1]"), BadRecord, "decode at steps[1]: a bad frame"),
    (Wrong([Problem("no field a")]), PermanentError, "no field a"),
    (TransientError("try again"), TransientError, "try again"),
    (Divergence("another value"), Divergence, "another value"),
]


def text_of_spark(error: BaseException) -> str:
    """Return the text of a failed query, as the driver gets it."""
    trace = "".join(traceback.format_exception(error))
    head = "[STREAM_FAILED] Job aborted due to stage failure\nPy4JJavaError: an error occurred\n"
    return f"{head}pyspark.errors.PythonException: {trace}\tat org.apache.spark.api.python.BasePythonRunner\n"


def kind_and_text(error: StrandlineError) -> tuple[type[StrandlineError], str]:
    return type(error), str(error)


@pytest.mark.guarantee(
    "G982",
    "If a package derives an error class from one of Strandline's classes, the error has the effect of that class. This holds in "
    "Spark's processes, in pools, and in child processes of the control service. A transient error makes the run wait.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize(("error", "kind", "text"), ERRORS, ids=lambda value: getattr(value, "__name__", None))
def test_an_error_keeps_its_kind_on_the_way_to_the_driver(error: StrandlineError, kind: type, text: str) -> None:
    with pytest.raises(StrandlineError) as raised, typed_for_driver():
        raise error
    assert kind_and_text(typed_error(RuntimeError(text_of_spark(raised.value)))) == (kind, text)


class RaisingReader(DataSourceStreamReader):
    """Every method raises an error of a package."""

    def __init__(self) -> None: ...

    def initialOffset(self) -> NoReturn:
        raise Busy("db", 7)

    def latestOffset(self, start: object, limit: object = None) -> NoReturn:  # type: ignore[override]
        raise Busy("db", 7)

    def partitions(self, start: object, end: object) -> NoReturn:
        raise Busy("db", 7)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield 1
        raise Busy("db", 7)


def fail(*_: object, **__: object) -> NoReturn:
    raise Busy("db", 7)


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], object]]:
    """Every function that Spark calls in its Python processes."""
    reader = StreamSource.of(RaisingReader())({}).streamReader(None)  # type: ignore[arg-type]
    keyed = SimpleNamespace(process=fail, emit_merged=fail, show_merged=fail, bucket_keys=(0,))
    part = keyed_task.msgspec.msgpack.encode(keyed_task.StagePart(True, 0, b""))
    frame = {"outcome": SimpleNamespace(tolist=lambda: [None]), "part": SimpleNamespace(tolist=lambda: [part])}
    frame["rows"] = SimpleNamespace(tolist=lambda: [b""])
    chunk = SimpleNamespace(keyed=keyed, work=None, recorded=SimpleNamespace(require_same=lambda facts: None))
    state = SimpleNamespace(exists=False)
    chunk_reader = SimpleNamespace(_chunk=None, _ledger_url="", _task=None)
    monkeypatch.setattr(keyed_task, "rows_of", lambda frames: [])
    monkeypatch.setattr(keyed_task, "decode_work", lambda work: None)
    for name, value in (("rows_of", lambda frames: []), ("encode", lambda work: b""), ("add_facts", list)):
        monkeypatch.setattr(backfill_emission, name, value)
    monkeypatch.setattr(backfill_emission, "open_ledger", fail)
    monkeypatch.setattr(backfill_emission, "SourceTask", lambda task: SimpleNamespace(read=fail))
    monkeypatch.setattr(backfill_emission, "SourceInputPartition", object)
    return {
        "initialOffset": reader.initialOffset,
        "latestOffset": lambda: reader.latestOffset({}, None),  # type: ignore[call-arg]
        "partitions": lambda: reader.partitions({}, {}),
        "read": lambda: list(reader.read(InputPartition(0))),
        "keyed task": lambda: list(KeyedTask.__call__(keyed, (0,), iter(()), state)),  # type: ignore[arg-type]
        "merge": lambda: KeyedTask.merge(keyed, (0,), frame),  # type: ignore[arg-type]
        "chunk": lambda: ChunkTask.__call__(chunk, (0,), None),  # type: ignore[arg-type]
        "partitions of a chunk": lambda: ChunkReader.partitions(chunk_reader),  # type: ignore[arg-type]
        "read of a chunk": lambda: list(ChunkReader.read(chunk_reader, SimpleNamespace(pieces=[]))),  # type: ignore[arg-type]
    }


@pytest.mark.guarantee("G982")
def test_every_function_that_spark_calls_passes_the_kind_on(edges: dict[str, Callable[[], object]]) -> None:
    found = {}
    for name, call in edges.items():
        with pytest.raises(StrandlineError) as raised:
            call()
        found[name] = kind_and_text(typed_error(RuntimeError(text_of_spark(raised.value))))
    assert found == dict.fromkeys(edges, (TransientError, "db is busy for 7 s"))


@pytest.mark.guarantee("G982")
@pytest.mark.parametrize(("error", "kind", "text"), ERRORS, ids=lambda value: getattr(value, "__name__", None))
def test_the_failure_of_a_member_of_a_pool_keeps_its_kind(error: StrandlineError, kind: type, text: str) -> None:
    found = Failure.of(error).error
    assert (type(found), " ".join(str(found).split())) == (kind, text)


@pytest.mark.guarantee("G982")
@pytest.mark.parametrize("error", [Busy("db", 7), Full("full"), Wrong([Problem("no field a")]), LogUnavailable("gone")])
def test_an_error_of_a_call_in_another_process_keeps_its_kind(error: StrandlineError) -> None:
    """The pickled error could not be read again, which the control service reported as a lack of memory."""

    def raising() -> NoReturn:
        raise error

    outcome = pickle.loads(run_call(SimpleNamespace(function=raising, arguments=())))  # type: ignore[arg-type]
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.error, StrandlineError)
    assert type(outcome.error).__module__ == errors.__name__
    assert isinstance(error, type(outcome.error))
    assert str(outcome.error) == str(error)


def test_an_error_of_another_library_with_a_familiar_name_is_none_of_ours() -> None:
    text = "pyspark.errors.PythonException: Traceback\ngoogle.api_core.exceptions.NotFound: 404 bucket\n"
    assert kind_and_text(typed_error(RuntimeError(text))) == (
        StrandlineError,
        "google.api_core.exceptions.NotFound: 404 bucket",
    )


def test_every_class_of_errors_can_be_restored() -> None:
    """A new class with a constructor of its own must get its own form in `portable_errors`."""
    own = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, StrandlineError)
    }
    assert own == CLASSES
    for kind in own.values():
        if not issubclass(kind, BadRecord | InvalidDocument):
            with pytest.raises(kind) as raised, typed_for_driver():
                raise kind("what happened")
            assert kind_and_text(typed_error(RuntimeError(text_of_spark(raised.value)))) == (kind, "what happened")
