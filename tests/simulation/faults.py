"""The faults of a history.

Faults overlap: each time, some faults are drawn at random and start at once, and none waits for another to end.
"""

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
        if fault(world):
            world.count(name_of(fault))


def name_of(fault: Callable[[World], bool]) -> str:
    return fault.__name__.replace("_", " ")


# Each of them says whether it has happened: some find nothing that could break.


def kill(world: World) -> bool:
    if not world.runs:
        return False
    del world.runs[world.chance.choice(sorted(world.runs))]
    return True


def overtake(world: World) -> bool:
    """The older run does not know it: it was paused, or cut off."""
    if not world.runs:
        return False
    world.asleep |= {epoch: world.chance.choice([0, 5, 50]) for epoch in world.runs}
    world.start()
    return True


def upgrade(world: World) -> bool:
    if len(world.versions) >= 4:
        return False
    world.submit(new_version(world.chance, world.versions[-1]))
    if world.chance.random() < 0.5:
        world.asleep |= {epoch: world.chance.choice([5, 50]) for epoch in world.runs}
        world.start()
    return True


def lose_the_brokers(world: World) -> bool:
    world.log.away_ms = world.log.away_ms or 0
    return True


def let_a_broker_be_behind(world: World) -> bool:
    """For some seconds, once in a history, a broker lacks records that are in slices."""
    partition = world.chance.randrange(len(world.log.records))
    last = world.ledger.last_slice(world.job)
    read = last.offsets[STREAM].get(partition, 0) if last is not None else 0
    first = world.log.removed.get(partition, 0)
    if read <= first or world.behind_until_ms is not None or world.cut is not None:
        return False
    world.log.seen_to[partition] = max(first, read - world.chance.randint(1, 4))
    world.behind_until_ms = world.mono_ms + world.chance.choice([500, 3_000, 7_000])
    return True


def hang_a_transaction(world: World) -> bool:
    partition = world.chance.randrange(len(world.log.records))
    world.log.open_from.setdefault(partition, len(world.log.records[partition]))
    return True


def fall_quiet(world: World) -> bool:
    world.load.quiet_until_ms = world.mono_ms + world.chance.choice([10_000, 60_000, 120_000])
    return True


def add_a_partition(world: World) -> bool:
    if len(world.log.records) >= PARTITIONS_MAX:
        return False
    world.load.add_partition()
    return True


def move_the_runners_clock(world: World) -> bool:
    """The wall clock of the runners' machine jumps, or is set right."""
    before_ms, world.wall_off_ms = world.wall_off_ms, world.chance.choice([-DAY_MS, -45_000, 0, 45_000, DAY_MS])
    return world.wall_off_ms != before_ms


def move_the_brokers_clock(world: World) -> bool:
    world.log.has_jumped = True
    before_ms = world.log.clock_off_ms
    world.log.clock_off_ms = world.chance.choice([-30_000, -2_000, 0, 2_000, 30_000, DAY_MS])
    return world.log.clock_off_ms != before_ms


def move_a_devices_clock(world: World) -> bool:
    """Make a device's clock wrong: its records are late, or from the future, until the clock is corrected."""
    world.load.devices_off_ms[world.chance.choice("abc")] = world.chance.choice([-DAY_MS, -30_000, 0, DAY_MS])
    return True


def let_the_clocks_drift(world: World) -> bool:
    """Monotonic clocks of the runs that begin from now on are that much too fast or too slow."""
    before, world.drift = world.drift, world.chance.choice([-5e-4, 0.0, 5e-4])
    return world.drift != before


def make_the_store_busy(world: World) -> bool:
    world.index.is_busy = True
    return True


def shut_the_store(world: World) -> bool:
    world.index.is_shut = True
    return True


def let_the_store_answer_late(world: World) -> bool:
    """Too late for who asks. What was asked for is done some time later, perhaps when others have asked again."""
    world.index.is_late = True
    return True


def cut_the_log(world: World) -> bool:
    """A partition loses its last records. Some of them may be in slices."""
    partition = world.chance.randrange(len(world.log.records))
    records = world.log.records[partition]
    last = world.ledger.last_slice(world.job)
    if len(records) < 5 + world.log.removed.get(partition, 0) or world.cut or world.chance.random() < 0.6:
        return False
    end = len(records) - world.chance.randint(1, 4)
    world.log.cut(partition, end)
    if last is not None and end < last.offsets[STREAM].get(partition, 0):
        world.cut = {partition}, last.number
    return True


def recreate_the_topic(world: World) -> bool:
    if world.cut or world.chance.random() < 0.93:
        return False
    last = world.ledger.last_slice(world.job)
    world.log.make_anew(with_records=world.chance.random() < 0.5)
    world.cut = set(range(PARTITIONS_MAX)), last.number if last is not None else 0
    return True


def remove_old_records(world: World) -> bool:
    """By retention. A rewind may need them."""
    last, checkpoint = world.ledger.last_slice(world.job), world.ledger.last_checkpoint(world.job)
    if last is None or checkpoint is None or checkpoint.closes_ms is None or world.cut or world.chance.random() < 0.8:
        return False
    partition = world.chance.choice(sorted(last.offsets[STREAM]))
    first = int(last.offsets[STREAM][partition] * world.chance.choice([0.1, 0.2, 0.5]))
    if first <= world.log.removed.get(partition, 0):
        return False
    world.log.removed[partition] = first
    return True


FAULTS: list[Callable[[World], bool]] = [
    kill,
    kill,
    overtake,
    upgrade,
    lose_the_brokers,
    let_a_broker_be_behind,
    hang_a_transaction,
    fall_quiet,
    add_a_partition,
    move_the_runners_clock,
    move_the_brokers_clock,
    move_a_devices_clock,
    let_the_clocks_drift,
    make_the_store_busy,
    shut_the_store,
    let_the_store_answer_late,
    cut_the_log,
    recreate_the_topic,
    remove_old_records,
]
