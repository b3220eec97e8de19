"""How the windows of a pipeline are cut into branches, each with a bucket key of its own. Pure.

Windows make trees: a first window takes records, every other one the results of one before it; a join those of two, where both
its sides are results. A window that none takes from, with all that lead to it from records on, is a *path*. The bucket of a row
is a hash of the fields by which all windows of its path group, so a bucket holds all rows of its keys and a whole path runs in
it. There are two exceptions:

- Where the last window of a path groups by none of the fields that those before it share (or there is one window, without a key),
  it is *split*: see `cascade.py`.
- Where those before the last one share no field either, everything is in one bucket; and where the last one are sessions,
  windows that count, or a join, because no bucket alone sees where one ends, or who meets whom.

Paths that begin with the same window are one branch where one bucket key does for all of them: then the windows that they share
are computed once. Else they are branches of their own. Such a window is computed in each, and its results leave in the first.
Results depend neither on this nor on which fields make the bucket: only the path of a window says in which order its rows are
added (`cascade.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.processing.pipelines.event_time import RECORDS, places_taken
from strandline.processing.pipelines.row_step import RowStep, duplicate_filter_of
from strandline.processing.pipelines.stages import Stage

BRANCHES_MAX = 100
"""Each has a kind of rows of its own in the exchange (`source.slice_rows`)."""


class Path(NamedTuple):
    """A window that none takes from, with those that lead to it."""

    firsts: tuple[int, ...]
    """The places of those that take records, ascending."""
    stages: tuple[int, ...]
    """The places of all, ascending."""


@dataclass
class Branch:
    """Windows that begin with some that take records, and have one bucket key."""

    bucket_by: list[str]
    """The fields; none: everything is in one bucket, unless it is wide."""
    is_wide: bool
    """Whether it has windows that are split where there are several buckets. Then these fields give their partial results their
    labels, too, and none may be left out."""
    stages: list[int] = field(default_factory=list)
    """Their places among the pipeline's stages, ascending."""
    split: list[int] = field(default_factory=list)
    """Those that are split where there are several buckets."""
    emits: list[int] = field(default_factory=list)
    """Those whose results leave here, and not in an earlier branch."""
    firsts: list[int] = field(default_factory=list)
    """The places of the windows that take records, ascending: one, where no join of results is here."""

    def takes_in(self, path: Path, by: Sequence[str], *, is_wide: bool) -> bool:
        """Whether this path, whose own fields would be `by`, can be a part of the branch. If so, the branch's key does for both
        from now on."""
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
    """The branches of these stages, in the order of the document: one for a pipeline where each step takes from the one before
    it, none where there is no window."""
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
    """By which records come in: the place of a branch, and that of a window there that takes records."""
    return [(number, first) for number, branch in enumerate(branches) for first in branch.firsts]


def paths_of(stages: Sequence[Stage]) -> list[Path]:
    """The paths, those with the first windows first."""
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
    """By which fields the rows of one path are spread over buckets, and whether its last window is split where there are
    several."""
    if by := _common_fields(stages):
        return by, False
    if stages[-1].needs_whole_keys:
        return [], False
    by = _common_fields(stages[:-1])
    return by, len(stages) == 1 or bool(by)


def made_by(steps: Sequence[RowStep]) -> set[str]:
    """The columns that these steps add. One of them may be called as a column that was dropped, and is another one."""
    return {name for step in steps for name, _ in step.added}


def _common_fields(stages: Sequence[Stage]) -> list[str]:
    """Those that a `dedupe` before them compares are asked, too: repeats are to be in one bucket."""
    if not stages:
        return []
    keys = [set(stage.by) for stage in stages]
    paths = [path for stage in stages for _, path in stage.record_paths]
    deduped = [(one, path.steps) for path in paths if (one := duplicate_filter_of(path.steps)) is not None]
    keys += [set(dedupe.by) - made_by(steps[steps.index(dedupe) :]) for dedupe, steps in deduped]
    return [name for name in stages[-1].by if all(name in key for key in keys)]
