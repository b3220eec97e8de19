"""Steps and windows of documents, for the front ends that read and write them. Each kind describes its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.processing.kinds.windows.window_plan import WindowForm, WindowPlan
from strandline.processing.pipelines.kind_registry import STAGE_KEYWORDS, part_of, window_kind_of

NOT_OF_KIND = frozenset({"name", "by", "aggregate", "offset", "tz"})
"""Fields of `window` that all kinds of windows have."""


@dataclass(frozen=True)
class WrittenForm:
    """A form of windows, with the plan of their kind."""

    form: WindowForm
    plan: WindowPlan

    @property
    def has_offset(self) -> bool:
        """True if such windows can have an offset."""
        return not self.plan.why_no_offset

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arguments of the SQL function, in their order."""
        more = ("offset", "tz") if self.has_offset else ()
        return ("data", "timecol", *(one.name for one in self.form.arguments), *more)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the required arguments."""
        return ("data", "timecol", *(one.name for one in self.form.arguments if one.is_needed))

    def fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `window` for these arguments, by name."""
        arguments = [one for one in self.form.arguments if one.name in given]
        value: Any = {one.field: given[one.name] for one in sorted(arguments, key=self._order)}
        if not self.form.arguments[0].field:
            value = given[self.form.arguments[0].name]
        return {self.form.keyword: value} | {name: given[name] for name in ("offset", "tz") if name in given}

    def _order(self, argument: Any) -> int:
        fields = self.form.python[1:]
        return fields.index(argument.field) if argument.field in fields else len(fields)

    def values(self, window: Mapping[str, Any]) -> list[tuple[str, Any]] | None:
        """Return (type, value) of each argument for a window. None if an argument can't be written."""
        value = window[self.form.keyword]
        is_whole = not self.form.arguments[0].field
        if is_whole == (isinstance(value, Mapping)) or (
            not is_whole and not {*value} <= {one.field for one in self.form.arguments}
        ):
            return None
        return [
            (one.type, value if is_whole else value[one.field])
            for one in self.form.arguments
            if is_whole or one.field in value
        ]


def window_forms() -> dict[str, WrittenForm]:
    """Return field of `window` -> its form, for the kinds that have one, including those of packages."""
    keywords = part_of("windows", "document").WindowSpec.extended().keywords()
    plans: list[WindowPlan] = [part_of(kind, "plan").PLAN for kind in dict.fromkeys(map(window_kind_of, keywords))]
    return {form.keyword: WrittenForm(form, plan) for plan in plans for form in plan.forms}


def window_functions() -> dict[str, WrittenForm]:
    """Return SQL function -> its form."""
    return {one.form.function: one for one in window_forms().values()}


def form_of(window: Mapping[str, Any]) -> WrittenForm | None:
    """Return the form of a window of a document. None if its kind has none."""
    return next((form for keyword, form in window_forms().items() if keyword in window), None)


def step_keywords() -> tuple[str, ...]:
    """Return the fields of a step that define an operation on rows, including those of packages."""
    from strandline.processing.pipelines.model.steps import StepSpec  # takes long, and programs in Python don't need it

    return StepSpec.extended().keywords()


def stage_of(step: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the stage of a document's step. None if the step is no stage, or if the stage is not a mapping."""
    stage = next((step[keyword] for keyword in STAGE_KEYWORDS if step.get(keyword)), None)
    return stage if isinstance(stage, Mapping) else None
