"""The settings of a control service, in the form in which an operator may see them.

Each of these rules hides a value, so that a new setting can't show a secret by mistake:

- its type contains a secret, or `secret_names` lists the setting,
- it is a string, and its name ends like that of a secret,
- it is, or contains, a URL with a user, a password, or a query. Only the rest of the URL is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import Secret, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from strandline.core.described import Described, docstrings_of
from strandline.core.settings import Settings, secret_names
from strandline.core.urls import without_credentials

PREFIX = "STRANDLINE_"
_ENDS_OF_SECRETS = re.compile(r"(^|_)(password|passphrase|secret|token|key|credentials)s?$")
_HAS_ADDRESS = re.compile(r"://|:[^\s@]*@")
"""Found in URLs, and in `user:password@host`."""


@dataclass(frozen=True)
class SettingView(Described):
    """One setting of a control service."""

    name: str
    """Environment variable."""
    meaning: str
    value: Any
    """Current value; null if it isn't set, or if it is secret. A URL has neither user and password nor its query."""
    default: Any
    """Value without the variable; null if there is none."""
    source: Literal["default", "environment", "file"]
    """`file`: the file that the variable with `_FILE` names. `strandline up` sets most variables of its control service."""
    is_secret: bool
    """True if the value, or a part of it, is secret and never leaves the process."""
    is_set: bool
    """True if there is a value. For a secret, this is all that is shown."""
    is_changed: bool
    """True if the value differs from the default."""


def setting_views(settings: Settings, environment: Mapping[str, str] | None = None) -> list[SettingView]:
    """Return all settings of this class, by name. `environment`: variables that were read; None for those of this process."""
    given = {name.upper() for name in (os.environ if environment is None else environment)}
    meanings = docstrings_of(type(settings))
    return [_view(settings, name, meanings.get(name, ""), given) for name in sorted(type(settings).model_fields)]


def _view(settings: Settings, name: str, meaning: str, given: set[str]) -> SettingView:
    field = type(settings).model_fields[name]
    value, default = getattr(settings, name), field.get_default(call_default_factory=True)
    variable = f"{PREFIX}{name.upper()}"
    is_file = f"{variable}_FILE" in given and name in secret_names(type(settings))
    shown, is_cut = (None, True) if _is_hidden(type(settings), name, field.annotation) else _shown(value)
    return SettingView(
        name=variable,
        meaning=" ".join(meaning.split()),
        value=shown,
        default=None if shown is None and is_cut else to_jsonable_python(default),
        source="file" if is_file else "environment" if name in settings.model_fields_set else "default",
        is_secret=is_cut or name in secret_names(type(settings)),
        is_set=value not in (None, "", {}, ()),
        is_changed=value != default,
    )


def _is_hidden(kind: type[Settings], name: str, annotation: Any) -> bool:
    """Return True if no part of the value may be shown. The URLs in `secret_names` are shown in part."""
    types = [*_types_in(annotation)]
    if any(isinstance(one, type) and issubclass(one, SecretStr | SecretBytes | Secret) for one in types):
        return True
    if name in secret_names(kind) and any(one not in (str, type(None)) for one in types):
        return True
    return str in types and _ENDS_OF_SECRETS.search(name) is not None


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, as `dict[str, SecretStr] | None`."""
    inner = get_args(annotation)
    origin = get_origin(annotation) if inner else annotation
    if origin is not UnionType:
        yield origin
    for one in inner:
        yield from _types_in(one)


def _shown(value: Any) -> tuple[Any, bool]:
    """Return the value as JSON, and whether a part was cut off: user, password, and query of each URL."""
    if isinstance(value, str):
        shown = _shown_text(value)
        return shown, shown != value
    if isinstance(value, Mapping):
        parts = {_shown_text(str(name)): _shown(one) for name, one in value.items()}
        is_cut = any(cut for _, cut in parts.values()) or [*parts] != [str(name) for name in value]
        return {name: one for name, (one, _) in parts.items()}, is_cut
    if isinstance(value, list | tuple | set | frozenset):
        some = [_shown(one) for one in value]
        return [one for one, _ in some], any(cut for _, cut in some)
    return to_jsonable_python(value), False


def _shown_text(text: str) -> str:
    if _HAS_ADDRESS.search(text) is None:
        return text
    return re.split(r"[?#]", without_credentials(text), maxsplit=1)[0]
