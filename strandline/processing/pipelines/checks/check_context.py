"""The state of the check of a pipeline, shared by the checks of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.core.documents import Path, YamlDocument, did_you_mean
from strandline.core.errors import PROBLEMS_MAX, Problem
from strandline.core.field_types import JSON_TYPE, is_nested
from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import (
    WINDOW_TIME_OF,
    ExpressionError,
    parse_expression,
    refuse_unknown_columns,
)
from strandline.processing.pipelines.kind_registry import package_of
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.row_step import Column, Projection, RowStep
from strandline.processing.pipelines.stages import RecordPath, RecordStage, Stage, StageInput


@dataclass(frozen=True)
class StepOutput:
    """The output of a step, as later steps can read it."""

    columns: Mapping[str, str | None]
    """The usable columns and their types. None if an error was already reported for the column."""
    paths: tuple[RecordPath, ...] = ()
    """Before the first window, the paths of records to the last union, or from the streams."""
    pending: tuple[RowStep, ...] = ()
    """Steps since the last window, or since its emission. Before the first window, steps since `paths`."""
    since_window: tuple[RowStep, ...] = ()
    """Steps since the last window, regardless of its emission."""
    stage: int | None = None
    """Index of that window among the stages. None if there is no window before."""
    is_emitted: bool = False
    """True if the emission of that window is on the path to this step."""

    @property
    def gives_window(self) -> bool:
        """True if later steps read the results of that window before its emission."""
        return self.stage is not None and not self.is_emitted

    def stage_input(self) -> StageInput:
        """Return this output as the input of a stage."""
        columns = tuple((name, kind or "") for name, kind in self.columns.items())
        if self.stage is None:
            return StageInput(columns, self.record_paths())
        steps = self.since_window if self.gives_window else self.pending
        return StageInput(columns, (), self.stage, self.gives_window, steps)

    def after(self, step: RowStep, columns: Mapping[str, str | None]) -> StepOutput:
        """Return the output of a step that reads this output and has these columns."""
        more = (*self.pending, step), (*self.since_window, step)
        return replace(self, columns=columns, pending=more[0], since_window=more[1])

    def record_paths(self) -> tuple[RecordPath, ...]:
        """Return the paths of records up to here, in the order of the streams."""
        return tuple(RecordPath(path.stream, (*path.steps, *self.pending)) for path in self.paths)


class CheckContext:
    """The state of one check, which visits the steps in order. Not thread-safe."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        streams: Sequence[StreamSpec],
        document: YamlDocument | None,
        lookups: Mapping[str, LookupShape],
    ) -> None:
        self.pipeline = pipeline
        self.streams = streams
        self.document = document or YamlDocument(
            "pipeline", pipeline.pipeline, {}, source=f"<stored pipeline {pipeline.pipeline}>"
        )
        self.is_submitted = document is not None
        self.problems: list[Problem] = []
        self.output = StepOutput({})
        """Output of the last step on the path to the step that is checked, or of this step when its check has ended."""
        self.taken: Sequence[StepOutput] = ()
        """Outputs of all steps that the step that is checked reads from."""
        self.sources = pipeline.sources
        self.stages: list[Stage] = []
        self.record_stages: list[RecordStage] = []
        self.columns_read: list[set[str]] = [set() for _ in streams]
        """For each stream, the fields that are read."""
        self.columns_emitted: list[set[str]] = [set() for _ in streams]
        """For each stream, the fields of records that are emitted as they are."""
        self.dedupes: list[Path] = []
        """Paths of the `dedupe` steps."""
        self.lookups = lookups

    @property
    def columns(self) -> Mapping[str, str | None]:
        """Columns that the step can use."""
        return self.output.columns

    def united(self, path: Path, names: Sequence[str], outputs: Sequence[StepOutput]) -> StepOutput:
        """Return the union of several outputs: their records, with the columns that all of them have."""
        for number, (name, output) in enumerate(zip(names, outputs, strict=True)):
            if output.stage is not None:
                self.add(
                    (*path, number),
                    f"'{name}' is after window '{self.stages[output.stage].name}', but only records can be united; emit its "
                    "results to a stream, and read the stream in another pipeline",
                )
                return outputs[0]
        paths: dict[int, RecordPath] = {}
        columns = self._columns_of_all(path, names, [output.columns for output in outputs])
        chosen = Projection(step_number(path), tuple(columns))
        for number, output in enumerate(outputs):
            for one in output.record_paths():
                if one.stream in paths:
                    stream = self.streams[one.stream].stream
                    self.add(
                        (*path, number),
                        f"'{names[number]}' has records of stream '{stream}', but an entry before it has them too: a record on "
                        "both paths would count twice. Use one path: 'where' with 'or', 'derive' with 'case when'",
                    )
                paths.setdefault(one.stream, RecordPath(one.stream, (*one.steps, chosen)))
        return StepOutput(columns, tuple(paths[at] for at in sorted(paths)))

    def _columns_of_all(
        self, path: Path, names: Sequence[str], columns: Sequence[Mapping[str, str | None]]
    ) -> dict[str, str | None]:
        """Return the columns, with types, that all inputs have. Report a column that has several types."""
        found: dict[str, str | None] = {}
        for name, kind in columns[0].items():
            kinds = [one.get(name) for one in columns if name in one]
            if len(kinds) < len(columns):
                continue
            found[name] = None if None in kinds else kind
            other = next((at for at, one in enumerate(kinds) if one is not None and kind not in (None, one)), None)
            if other is not None:
                self.add(
                    path,
                    f"'{name}' is a {kind} in {names[0]} and a {kinds[other]} in {names[other]}, but a column has one type. "
                    f"Before the union, drop it from an input ('drop: [{name}]'). If it is needed, derive a column with "
                    f"another name in both, as {{{name}_2: cast({name} as {kind})}}",
                )
                found[name] = None
        if not found:
            self.add(path, f"no field is in all of {', '.join(names)}; derive fields of the same names first")
        return found

    def read(self, name: str, paths: Sequence[RecordPath] | None = None) -> None:
        """Note that a column is read that may be a field of the streams on these paths. Default: the paths to this step."""
        for path in self.output.paths if paths is None else paths:
            if name in self.streams[path.stream].fields:
                self.columns_read[path.stream].add(name)

    def emitted(self, name: str) -> None:
        """Note that a column is a field of records that are emitted unchanged."""
        for path in self.output.paths:
            if name in self.streams[path.stream].fields:
                self.columns_emitted[path.stream].add(name)

    def end_step(self, step: RowStep, columns: Mapping[str, str | None] | None = None) -> None:
        """End the check of a row step. `columns`: after the step; None if it changes none."""
        if package := package_of(step.kind):
            step = replace(step, kind_package=package)
        self.output = self.output.after(step, self.columns if columns is None else columns)

    def end_stage(self, stage: Stage, columns: Mapping[str, str | None]) -> None:
        """End the check of a window or a join, whose results have these columns."""
        if package := package_of(stage.kind):
            stage = replace(stage, kind_package=package)
        self.stages.append(stage)
        self.output = StepOutput(columns, stage=len(self.stages) - 1)

    @property
    def window_before(self) -> Stage | None:
        """Last window on the path to this step. None if there is none."""
        return None if self.output.stage is None else self.stages[self.output.stage]

    def add(self, path: Path, message: str) -> None:
        """Report a problem, with its line in the document if it is known."""
        self.problems.append(self.document.problem(path, message))

    def expression(self, path: Path, text: str, *, aggregate: bool) -> Column | None:
        """Return the named expression. None if it has a problem, which is reported, or if it uses a column with a problem."""
        if len(self.problems) > PROBLEMS_MAX:
            return None
        try:
            expression = parse_expression(text)
            if aggregate and not expression.is_aggregate:
                raise ExpressionError(f"has no aggregate function; write for example max({text})")
            if not aggregate and expression.is_aggregate:
                raise ExpressionError("aggregates are only allowed in 'aggregate' of a window")
            is_of_window = not aggregate and self.output.stage is not None
            columns = {**self.columns, **dict.fromkeys(WINDOW_TIME_OF, "timestamp")} if is_of_window else self.columns
            refuse_unknown_columns(expression, columns)
            types = {name: kind for name in expression.columns if (kind := columns[name]) is not None}
            if self.output.stage is None:
                for name in expression.columns:
                    self.read(name)
            if len(types) < len(expression.columns):
                return None
            return Column(str(path[-1]), expression.sql, infer_type(expression, types))
        except ExpressionError as error:
            self.add(path, f"{error} (in: {text})")
            return None

    def check_key(self, path: Path, name: str) -> None:
        """Report a field of a window's `by` that is no existing column, or is a double."""
        if name not in self.columns:
            self.add(path, f"unknown column '{name}'{did_you_mean(name, self.columns)}")
        elif self.columns[name] == "double":
            self.add(path, f"'{name}' is a double, which makes no reliable key; use a string, an integer or a decimal")
        elif is_nested(self.columns[name] or ""):
            self.add(path, f"'{name}' has the type {self.columns[name]}, which makes no key; group by a value in it")
        elif not self.window_before:
            if self.is_json(name, self.output.paths):
                self.add(
                    path,
                    f"'{name}' is json, and two strings of JSON can mean the same; declare the member that is the key",
                )
            self.read(name)

    def refuse_known_names(self, path: Path, names: Iterable[str]) -> None:
        """Report each new column that has the name of an existing column."""
        before = {name.lower(): name for name in self.columns}
        for name in names:
            if other := before.get(name.lower()):
                self.add((*path, name), f"a column is already called '{other}'; choose another name")

    def is_json(self, name: str, paths: Sequence[RecordPath]) -> bool:
        """Return True if a column is a field of type json of a stream on these paths. Expressions read it as a string."""
        fields = [self.streams[path.stream].fields.get(name) for path in paths]
        return any(field is not None and field.type == JSON_TYPE for field in fields)


def step_number(path: Path) -> int:
    """Return the number of the step that this path of the document is in."""
    number = path[1]
    assert isinstance(number, int), "a path in a step begins with 'steps' and its number"
    return number
