"""The division of a pipeline's windows into branches, each with its own bucket key. Pure.

Windows form trees. A first window reads records. Every other window reads the results of a window before it; a join can read the
results of two. A *path* is a window that no other window reads, with all windows that lead to it. All windows of a path group by
some common fields. The bucket of a row is a hash of these fields, so a bucket contains all rows of its keys, and a whole path is
computed in it. There are two exceptions:

- The last window of a path groups by no field that all windows before it share, or is the only window and has no key. Then it is
  *split*: see `cascade.py`.
- The windows before the last one share no field either. Then everything is in one bucket. This is also true if the last stage
  is a join, or windows made by records: a single bucket can't determine where their windows end or which rows match.

Paths that begin with the same window are one branch if one bucket key serves all of them. Then the windows that they share are
computed once. Otherwise they are separate branches. A shared window is computed in each of them, and the first branch emits its
results.

Results depend neither on this division nor on the fields of the bucket key. Only the path of a window determines in which order
its rows are added (`cascade.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.processing.pipelines.event_time import RECORDS, places_taken
from strandline.processing.pipelines.row_step import RowStep, duplicate_filter_of
from strandline.processing.pipelines.stages import Stage

BRANCHES_MAX = 100
"""Maximum number of branches. Each has its own kind of rows in the exchange (`source.slice_rows`)."""


class Path(NamedTuple):
    """A window that no other window reads, with those that lead to it."""

    firsts: tuple[int, ...]
    """Indices of the stages that read records, ascending."""
    stages: tuple[int, ...]
    """Indices of all stages, ascending."""


@dataclass
class Branch:
    """Windows that begin with stages that read records, and have one bucket key."""

    bucket_by: list[str]
    """Fields of the bucket key. Without fields, everything is in one bucket, unless the branch is wide."""
    is_wide: bool
    """True if it has windows that are split over several buckets. Then these fields are also the labels of their partial
    results, and no field can be left out."""
    stages: list[int] = field(default_factory=list)
    """Indices of its stages in the pipeline, ascending."""
    split: list[int] = field(default_factory=list)
    """Indices of the stages that are split if there are several buckets."""
    emits: list[int] = field(default_factory=list)
    """Indices of the stages whose results are emitted here, not in an earlier branch."""
    firsts: list[int] = field(default_factory=list)
    """Indices of the stages that read records, ascending. One, unless the branch contains a join of results."""

    def takes_in(self, path: Path, by: Sequence[str], *, is_wide: bool) -> bool:
        """Return True if this path can be a part of the branch. If so, the bucket key of the branch is changed to serve both.

        `by`: bucket key that the path would have alone.
        """
        if not set(path.firsts) & set(self.firsts):
            return False
        if not by or not self.bucket_by:
            return not by and not self.bucket_by and not is_wide and not self.is_wide
        if is_wide:
            fits = list(by) == self.bucket_by if self.is_wide else set(by) <= set(self.bucket_by)
            shared = list(by)
        elif self.is_wide:
            fits, shared = set(self.bucket_by) <= set(by), self.bucket_by
        else:
            shared = [name for name in self.bucket_by if name in by]
            fits = bool(shared)
        if fits:
            self.bucket_by, self.is_wide = shared, is_wide or self.is_wide
        return fits

    def add(self, path: Path, *, is_wide: bool) -> None:
        self.stages = sorted({*self.stages, *path.stages})
        self.firsts = sorted({*self.firsts, *path.firsts})
        if is_wide:
            self.split.append(path.stages[-1])


def plan_branches(stages: Sequence[Stage]) -> list[Branch]:
    """Return the branches of these stages, in the order of the document. A pipeline whose steps form a line has one. A pipeline
    without windows has none."""
    branches: list[Branch] = []
    for path in paths_of(stages):
        by, is_wide = bucket_key([stages[at] for at in path.stages])
        branch = next((one for one in branches if one.takes_in(path, by, is_wide=is_wide)), None)
        if branch is None:
            branch = Branch(by, is_wide)
            branches.append(branch)
        branch.add(path, is_wide=is_wide)
    emitted: set[int] = set()
    for branch in branches:
        branch.emits = [at for at in branch.stages if at not in emitted]
        emitted.update(branch.stages)
    return branches


def entries_of(branches: Sequence[Branch]) -> list[tuple[int, int]]:
    """Return the entries for records: the index of a branch, and the index of a stage in it that reads records."""
    return [(number, first) for number, branch in enumerate(branches) for first in branch.firsts]


def paths_of(stages: Sequence[Stage]) -> list[Path]:
    """Return the paths, in the order of their first windows."""
    taken = places_taken([stage.shape for stage in stages])
    has_taker = {one for some in taken for one in some}
    paths = []
    for last in range(len(stages)):
        if last in has_taker:
            continue
        found = {last}
        for at in range(last, -1, -1):
            if at in found:
                found.update(one for one in taken[at] if one != RECORDS)
        paths.append(Path(tuple(at for at in sorted(found) if RECORDS in taken[at]), tuple(sorted(found))))
    return sorted(paths)


def bucket_key(stages: Sequence[Stage]) -> tuple[list[str], bool]:
    """Return the fields that spread the rows of one path over buckets, and True if its last window is split over several
    buckets."""
    if by := _common_fields(stages):
        return by, False
    if stages[-1].needs_whole_keys:
        return [], False
    by = _common_fields(stages[:-1])
    return by, len(stages) == 1 or bool(by)


def made_by(steps: Sequence[RowStep]) -> set[str]:
    """Return the columns that these steps add. Such a column differs from a dropped column with the same name."""
    return {name for step in steps for name, _ in step.added}


def _common_fields(stages: Sequence[Stage]) -> list[str]:
    """Return the fields that all stages share, and that a `dedupe` before them compares: duplicates must be in one bucket."""
    if not stages:
        return []
    keys = [set(stage.by) for stage in stages]
    paths = [path for stage in stages for _, path in stage.record_paths]
    deduped = [(one, path.steps) for path in paths if (one := duplicate_filter_of(path.steps)) is not None]
    keys += [set(dedupe.by) - made_by(steps[steps.index(dedupe) :]) for dedupe, steps in deduped]
    return [name for name in stages[-1].by if all(name in key for key in keys)]
