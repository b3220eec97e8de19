"""Errors that leave a process. The other process needs their class, but may not have imported the package that defines it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.core import errors
from strandline.core.errors import BadRecord, InvalidDocument, PermanentError, StrandlineError

_OWN = "strandline."


def classes_below(kind: type[StrandlineError]) -> list[type[StrandlineError]]:
    """Return the class and all classes of `core.errors` that are derived from it."""
    below = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return [kind, *(found for one in below for found in classes_below(one))]


CLASSES = {kind.__name__: kind for kind in classes_below(StrandlineError)}
"""Name -> class of `core.errors`. Every process knows these classes."""


def portable(error: StrandlineError) -> StrandlineError:
    """Return the error with a class of `core.errors`: its own, or the nearest one that it is derived from. The caller's reaction
    depends only on that class. The text stays the same."""
    kind = next(one for one in type(error).__mro__ if one.__module__ == errors.__name__)
    if kind is type(error):
        return error
    if isinstance(error, BadRecord):
        return BadRecord(error.reason, error.message, error.step)
    if isinstance(error, InvalidDocument):
        return InvalidDocument(error.problems)
    return CLASSES[kind.__name__](text_of(error))


def picklable(error: StrandlineError) -> StrandlineError:
    """Return the error for another process of Strandline. The class of a package becomes one of `core.errors`: it can have
    attributes that can't be pickled, or a constructor that doesn't accept only a message."""
    return error if type(error).__module__.startswith(_OWN) else portable(error)


def text_of(error: StrandlineError) -> str:
    """Return the text of the error, or the name of its class if it has no text."""
    return str(error) or f"{type(error).__qualname__} (without a message)"


@contextmanager
def typed_for_driver() -> Iterator[None]:
    """Raise each StrandlineError of the block in a form from whose text Spark's driver can restore the class. Spark passes on
    only the text of an error from its Python processes (see `processing/spark/errors.py`).

    The class is one of `core.errors`: a class of a package becomes the nearest one that it is derived from. The text is one
    line, because the driver searches the last line that looks like an error.
    """
    try:
        yield
    except StrandlineError as error:
        raise _in_one_line(portable(error)) from error


def _in_one_line(error: StrandlineError) -> StrandlineError:
    text = " ".join(text_of(error).split())
    if isinstance(error, BadRecord):
        return BadRecord(error.reason, " ".join(error.message.split()), error.step)
    if isinstance(error, InvalidDocument):
        return PermanentError(text)
    return type(error)(text)
