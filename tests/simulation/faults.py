"""What breaks in a history. Faults overlap: each time some of them, drawn at random, begin at once, and none waits for another to
end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.versions import STREAM, new_version

if TYPE_CHECKING:
    from tests.simulation.world import World

DAY_MS = 86_400_000
PARTITIONS_MAX = 6


def break_things(world: World) -> None:
    """A random subset of what can break."""
    for fault in world.chance.sample(FAULTS, world.chance.choice([1, 1, 2, 3])):
        world.faults += 1
        world.note(fault.__name__)
        fault(world)


def kill(world: World) -> None:
    if world.runs:
        del world.runs[world.chance.choice(sorted(world.runs))]


def overtake(world: World) -> None:
    """The older run does not know it: it was paused, or cut off."""
    world.asleep |= {epoch: world.chance.choice([0, 5, 50]) for epoch in world.runs}
    world.start()


def upgrade(world: World) -> None:
    if len(world.versions) < 4:
        world.submit(new_version(world.chance, world.versions[-1]))
        if world.chance.random() < 0.5:
            world.asleep |= {epoch: world.chance.choice([5, 50]) for epoch in world.runs}
            world.start()


def lose_the_brokers(world: World) -> None:
    world.log.away_ms = world.log.away_ms or 0


def hang_a_transaction(world: World) -> None:
    partition = world.chance.randrange(len(world.log.records))
    world.log.open_from.setdefault(partition, len(world.log.records[partition]))


def fall_quiet(world: World) -> None:
    world.load.quiet_until_ms = world.mono_ms + world.chance.choice([10_000, 60_000, 120_000])


def add_a_partition(world: World) -> None:
    if len(world.log.records) < PARTITIONS_MAX:
        world.load.add_partition()


def move_the_runners_clock(world: World) -> None:
    """The wall clock of the runners' machine jumps, or is set right."""
    world.wall_off_ms = world.chance.choice([-DAY_MS, -45_000, 0, 45_000, DAY_MS])


def move_the_brokers_clock(world: World) -> None:
    world.log.has_jumped = True
    world.log.clock_off_ms = world.chance.choice([-30_000, -2_000, 0, 2_000, 30_000, DAY_MS])


def let_the_clocks_drift(world: World) -> None:
    """Monotonic clocks of the runs that begin from now on are that much too fast or too slow."""
    world.drift = world.chance.choice([-5e-4, 0.0, 5e-4])


def make_the_store_busy(world: World) -> None:
    world.index.is_busy = True


def shut_the_store(world: World) -> None:
    world.index.is_shut = True


def cut_the_log(world: World) -> None:
    """A partition loses its last records. Some of them may be in slices."""
    partition = world.chance.randrange(len(world.log.records))
    records = world.log.records[partition]
    last = world.ledger.last_slice(world.job)
    if len(records) < 5 or world.cut is not None or world.chance.random() < 0.6:
        return
    end = len(records) - world.chance.randint(1, 4)
    world.log.cut(partition, end)
    if last is not None and end < last.offsets[STREAM].get(partition, 0):
        world.cut = partition, last.number


FAULTS: list[Callable[[World], None]] = [
    kill,
    kill,
    overtake,
    upgrade,
    lose_the_brokers,
    hang_a_transaction,
    fall_quiet,
    add_a_partition,
    move_the_runners_clock,
    move_the_brokers_clock,
    let_the_clocks_drift,
    make_the_store_busy,
    shut_the_store,
    cut_the_log,
]
