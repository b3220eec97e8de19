"""The field `elasticsearch` of an emission."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration, Name, check_name
from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.results.index_settings import REPLICAS_DEFAULT, IndexSettings
from strandline.results.names import check_emit_name

REPLICAS_MAX = 100
REFRESH_INTERVAL_MS_MIN = 100
"""A shorter interval costs more than the writing itself."""
UPDATES_MS_MIN = 5_000
"""A shorter interval would cause many writes of preliminary results."""


def _replicas(value: object) -> object:
    if isinstance(value, str) and (found := re.fullmatch(r"(\d{1,3})-(\d{1,3}|all)", value)):
        if found[2] == "all" or int(found[1]) <= int(found[2]):
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= REPLICAS_MAX:
        return value
    raise ValueError(
        f"{value!r} is not a number of replicas; write a number from 0 to {REPLICAS_MAX}, or bounds for one replica per "
        f"additional node, for example 0-1 or 0-all"
    )


def _policy_name(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[^\s,_\x00-\x1f][^\s,\x00-\x1f]{0,254}", value):
        return value
    raise ValueError(
        f"{value!r} is not the name of a lifecycle policy; write a name without spaces and commas that doesn't begin with '_'"
    )


class IndexSpec(DocumentModel):
    """An emission to Elasticsearch. `turbine-minute` is short for `{name: turbine-minute}`."""

    name: Name
    """An alias in Elasticsearch. The indices are `NAME-yyyy.MM` by the window's end."""
    shards: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of shards of each index."""
    replicas: Annotated[int | str, BeforeValidator(_replicas)] = REPLICAS_DEFAULT
    """Replicas of each shard: a number, or bounds for one replica per additional node, for example 0-1 or 0-all."""
    refresh_interval: Duration | None = None
    """Maximum time until searches find a result. Null for Elasticsearch's default."""
    lifecycle: Annotated[str, BeforeValidator(_policy_name)] | None = None
    """A policy of Elasticsearch's index lifecycle management, which must exist there."""
    updates: Duration | None = None
    """Interval at which open windows are shown in the index `NAME.open`. Null for never. Only for windows."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        long_form = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(core_schema, handler))
        return {"anyOf": [long_form["properties"]["name"], long_form]}

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        if isinstance(value, dict | cls):
            return value
        return {"name": check_name(value)}  # type: ignore[arg-type]

    @model_serializer(mode="wrap")
    def _in_short_form(self, handler: SerializerFunctionWrapHandler) -> object:
        long_form = handler(self)
        return self.name if self == IndexSpec(name=self.name) else long_form

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.refresh_interval is not None and self.refresh_interval < REFRESH_INTERVAL_MS_MIN:
            yield ("refresh_interval",), f"expected at least {format_duration(REFRESH_INTERVAL_MS_MIN)}"
        if self.updates is not None and self.updates < UPDATES_MS_MIN:
            yield (
                ("updates",),
                f"expected at least {format_duration(UPDATES_MS_MIN)}: each update writes all changed windows",
            )
        try:
            check_emit_name(self.name)
        except ValueError as error:
            yield (), str(error)

    @property
    def settings(self) -> IndexSettings:
        """Settings of the indices."""
        return IndexSettings(self.shards, self.replicas, self.refresh_interval, self.lifecycle, self.updates)
