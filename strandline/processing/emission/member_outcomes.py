"""The outcome of one member in one batch of a pool: the facts for its checkpoint, or the failure of this member alone."""

from __future__ import annotations

import msgspec

from strandline.core.errors import BadRecord, InvalidDocument, PermanentError, StrandlineError
from strandline.core.portable_errors import CLASSES, portable, text_of
from strandline.processing.emission.keyed_task import BucketOutcome


class Failure(msgspec.Struct, frozen=True):
    """An error, in a form that the driver can read without the packages of a worker."""

    kind: str
    """Name of the class of `core.errors`, if it is a StrandlineError. Otherwise empty."""
    message: str
    reason: str = ""
    """Reason of a BadRecord."""
    step: str = ""
    """Step of a BadRecord."""

    @staticmethod
    def of(error: Exception) -> Failure:
        """Return the failure that describes this error. A class of a package becomes the nearest one that it is derived from."""
        if isinstance(error, BadRecord):
            return Failure(BadRecord.__name__, error.message, error.reason, error.step)
        if isinstance(error, InvalidDocument):
            return Failure(PermanentError.__name__, str(error))
        if isinstance(error, StrandlineError):
            return Failure(type(portable(error)).__name__, text_of(error))
        return Failure("", f"{type(error).__name__}: {error}")

    @property
    def error(self) -> StrandlineError:
        """Return the error. A StrandlineError has its class. Another error becomes a StrandlineError with the class in its
        text."""
        if self.kind == BadRecord.__name__:
            return BadRecord(self.reason, self.message, self.step)
        return CLASSES.get(self.kind, StrandlineError)(self.message)


class MemberOutcome(msgspec.Struct, frozen=True):
    """Outcome of one member in one batch."""

    job: str
    number: int
    """Number of the last slice."""
    done: BucketOutcome | None = None
    """Facts for the checkpoint. None if the member failed."""
    failure: Failure | None = None
    """None if the member succeeded."""
    cpu_us: int = 0
    """CPU time of the thread of the task for this member, in microseconds."""
    state_bytes: int = 0
    """Size of the state after the slice."""
