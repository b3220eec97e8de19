"""Service that checks the conditions of all notices and sends their messages, while this control service leads the notices.

One thread checks and decides. Each channel sends from its own thread, so a receiver that hangs delays no other channel.

1. Record the readings of this machine, so that any leader knows them.
2. Claim or renew the lease. Only its holder continues.
3. For each notice: check its conditions, run the state machine, and record problems and messages.
4. For each channel: choose the messages to send now. Record an attempt before it begins and after it has ended.

After a kill, the messages in the ledger are sent. A message whose attempt was interrupted is sent again, once for each kill.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

import structlog

from strandline.core.errors import Fenced, InvalidDocument, StrandlineError
from strandline.ledger.journal import NewEvent
from strandline.ledger.notices import AttemptRow, MessageRow, NoticeChanges, NoticeRow
from strandline.ledger.roles import NoticeLedger
from strandline.notices.channels.table import channel_of
from strandline.notices.channels.tools import ChannelTools, Outgoing
from strandline.notices.conditions.table import condition_of
from strandline.notices.document import ConditionSpec, NoticeSpec
from strandline.notices.finding import Sight
from strandline.notices.machine import Memory, look
from strandline.notices.outbox import choose, gives_up, pause_ms
from strandline.notices.readings import unread
from strandline.notices.rendering import render
from strandline.notices.view import Surroundings, View

logger = structlog.get_logger()

POLL_INTERVAL_S = 5.0
SEND_INTERVAL_S = 1.0
EVENTS_A_LOOK = 5_000
PROBLEMS_A_SUMMARY = 20_000
LEASE_MIN_MS = 20_000
"""Minimum length of the lease. It is longer than an attempt, so when it ends, the attempts of the former leader have ended."""
KEPT_MS = 30 * 86_400_000
"""Time for which settled problems and sent messages are kept."""
FORGET_EVERY_S = 3_600.0
READINGS_INTERVAL_S = 30.0
"""Time between two readings of the machine of a control service."""
_SPARE_S = 2.0


@dataclass(frozen=True)
class NoticeTimes:
    """Intervals at which a control service checks and sends."""

    look_s: float = POLL_INTERVAL_S
    send_s: float = SEND_INTERVAL_S
    lease_ms: int = LEASE_MIN_MS


@dataclass(frozen=True)
class Work:
    """One attempt to send a message."""

    row: NoticeRow
    spec: NoticeSpec
    message: MessageRow
    attempt: AttemptRow
    begun_s: float
    """Monotonic time before the attempt was recorded."""


class NoticeService:
    """Runs in its own threads between `start` and `close`."""

    def __init__(
        self,
        ledger: NoticeLedger,
        service: str,
        tools: ChannelTools,
        surroundings: Surroundings,
        times: NoticeTimes | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: service: Name of this control service. No other process has the name while this process runs."""
        self._ledger = ledger
        self._service = service
        self._holder = f"{service}/{token_hex(8)}"
        self._tools = tools
        self._surroundings = surroundings
        self._times = times or NoticeTimes()
        self._monotonic_s = monotonic_s
        self._sending: dict[tuple[str, str], int] = {}
        """Notice and channel of the running attempts -> number of the message."""
        self._lock = threading.Lock()
        self._next_look_s = self._next_forget_s = self._next_readings_s = 0.0
        self._epoch, self._renew_at_s = 0, 0.0
        self._said = ""
        """Last logged error, while it persists."""
        self._specs: dict[str, tuple[tuple[int, int], NoticeSpec]] = {}
        """Notice -> its version, and its document."""
        self._unread: list[str] = []
        """Parts of this machine that could not be examined, as they were logged."""
        self._failing: set[tuple[str, str]] = set()
        """Notice and condition whose check failed and was logged."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Begin no new attempt, wait for the running attempts, and release the lease."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        until_s = self._monotonic_s() + self._tools.timeout_s + _SPARE_S
        while self._sending and self._monotonic_s() < until_s:
            time.sleep(0.02)
        try:
            self._ledger.release_notices(self._service)
        except StrandlineError as error:
            logger.warning("can't release the lease of the notices; it will expire", action="notices", error=str(error))

    def wake(self) -> None:
        """Check soon, because a notice was applied or tested."""
        self._next_look_s = 0.0

    def step(self) -> None:
        """Record readings and check the conditions if it is time, and begin to send due messages. Raises StrandlineError."""
        if not self._ledger.notices():
            return
        if self._monotonic_s() >= self._next_readings_s:
            self._record_readings()
        if not self._leads():
            return
        epoch, now_ms = self._epoch, self._ledger.notice_clock_ms()
        if self._monotonic_s() >= self._next_look_s:
            self._next_look_s = self._monotonic_s() + self._times.look_s
            self.look(epoch, now_ms)
        self._send_due(epoch, now_ms)
        if self._monotonic_s() >= self._next_forget_s:
            self._next_forget_s = self._monotonic_s() + FORGET_EVERY_S
            self._ledger.forget_notices(now_ms - KEPT_MS)

    def _record_readings(self) -> None:
        readings = self._surroundings.readings()
        problems = unread(readings)
        if problems and problems != self._unread:
            logger.warning("can't examine this machine", action="notices", error="; ".join(problems))
        self._unread = problems
        self._ledger.record_readings(self._service, readings)
        self._next_readings_s = self._monotonic_s() + READINGS_INTERVAL_S

    def _leads(self) -> bool:
        """Claim the lease, or renew it after a quarter of its time. The ledger refuses writes of a former leader."""
        asked_s = self._monotonic_s()
        if asked_s < self._renew_at_s:
            return True
        granted = self._ledger.lead_notices(self._holder, self._times.lease_ms)
        if granted is None:
            return False
        self._epoch = granted[0]
        self._renew_at_s = asked_s + self._times.lease_ms / 4_000
        return True

    def look(self, epoch: int, now_ms: int) -> None:
        """Check the conditions of each notice once. An error of one notice doesn't stop the others."""
        for row in self._ledger.notices():
            try:
                self._look_at(epoch, now_ms, row)
            except (Fenced, InvalidDocument) as error:
                logger.info(
                    "the check of a notice was not recorded", action="notices", notice=row.name, error=str(error)
                )

    def _look_at(self, epoch: int, now_ms: int, row: NoticeRow) -> None:
        spec = self._spec(row)
        events = self._ledger.events(None, row.event_seen, EVENTS_A_LOOK)
        keywords = frozenset(one.keyword for one in spec.when)
        view = View(self._ledger, now_ms, events, spec.jobs, keywords, self._surroundings)
        sights: dict[str, Sight] = {}
        for label, condition in zip(spec.labels, spec.when, strict=True):
            sights[label] = self._sight(row.name, label, condition, view)
        known = self._ledger.notice_problems(row.name, now_ms - spec.cooldown)
        memory = Memory.of(row.memory)
        is_held = spec.is_quiet(now_ms) or (row.muted_until_ms is not None and now_ms < row.muted_until_ms)
        found = look(
            spec.rules,
            memory,
            known,
            sights,
            now_ms,
            lambda kind, rows: render(row.name, kind, rows, spec.about),
            is_held=is_held,
        )
        event_seen = events[-1].id if events else row.event_seen
        if found.memory == memory and not found.problems and not found.messages and event_seen == row.event_seen:
            return
        reported = [
            NewEvent(
                f"notice_{message.kind}",
                f"notice {row.name}: {message.content['title']}",
                facts={"notice": row.name, "message": message.number, "problems": message.problems[:100]},
            )
            for message in found.messages
            if message.channel == found.messages[0].channel
        ]
        changes = NoticeChanges(found.memory.stored, event_seen, found.problems, found.messages, reported)
        self._ledger.record_notice(epoch, row, changes)

    def _spec(self, row: NoticeRow) -> NoticeSpec:
        """Return the document of a notice. It is parsed once for each version."""
        known = self._specs.get(row.name)
        if known is None or known[0] != (row.created_ms, row.version):
            known = self._specs[row.name] = ((row.created_ms, row.version), NoticeSpec.from_document(row.document))
        return known[1]

    def _sight(self, notice: str, label: str, condition: ConditionSpec, view: View) -> Sight:
        """Check one condition. If the check fails, its problems stay unchanged.

        Raises StrandlineError if events could not be read, because they must not count as handled.
        """
        module = condition_of(condition.keyword)
        try:
            sight: Sight = module.look(condition.options, view)
        except StrandlineError as error:
            if (notice, label) not in self._failing:
                self._failing.add((notice, label))
                logger.warning(
                    "can't check a condition", action="notices", notice=notice, condition=label, error=str(error)
                )
            if getattr(module, "BY_EVENTS", False):
                raise
            return Sight(is_blind=True)
        self._failing.discard((notice, label))
        return sight

    def _send_due(self, epoch: int, now_ms: int) -> None:
        """Begin at most one attempt for each channel of each notice that has none."""
        pending: dict[tuple[str, str], list[MessageRow]] = defaultdict(list)
        for message in self._ledger.pending_messages():
            pending[message.notice, message.channel].append(message)
        if not pending:
            return
        attempts: dict[tuple[str, str], list[AttemptRow]] = defaultdict(list)
        for attempt in self._ledger.notice_attempts():
            self._end_orphan(attempt)
            attempts[attempt.notice, attempt.channel].append(attempt)
        specs = {row.name: row for row in self._ledger.notices()}
        for (name, channel), messages in pending.items():
            with self._lock:
                if (name, channel) in self._sending or self._closing.is_set():
                    continue
            if name in specs:
                try:
                    self._send_to(epoch, now_ms, specs[name], channel, messages, attempts[name, channel])
                except InvalidDocument as error:  # a newer version of Strandline has written it
                    logger.warning(
                        "can't send the messages of a notice", action="notices", notice=name, error=str(error)
                    )

    def _end_orphan(self, attempt: AttemptRow) -> None:
        """End an attempt that this process recorded without learning of it, because the response of the ledger was lost.
        Nothing was sent. Only the leader begins attempts, so an attempt without an end that doesn't run here is of this kind."""
        with self._lock:
            is_running = self._sending.get((attempt.notice, attempt.channel)) == attempt.message
        if attempt.ended_ms is None and not is_running:
            self._ledger.end_attempt(attempt, "the attempt was not made, because the ledger did not respond", 0)

    def _send_to(
        self,
        epoch: int,
        now_ms: int,
        row: NoticeRow,
        channel: str,
        messages: list[MessageRow],
        attempts: list[AttemptRow],
    ) -> None:
        spec = self._spec(row)
        sends = choose(messages, attempts, spec.limit, now_ms)
        if sends.merged:
            self._summarize(epoch, now_ms, row, channel, sends.merged)
        if not sends.now:
            return
        message = sends.now[0]
        begun_s = self._monotonic_s()
        attempt = self._ledger.begin_attempt(epoch, message)
        if attempt is not None:
            with self._lock:
                self._sending[row.name, channel] = message.number
            self._begin(Work(row, spec, message, attempt, begun_s))

    def _begin(self, work: Work) -> None:
        """Send a message in its own thread, so that a receiver that hangs delays no other channel."""
        threading.Thread(target=self._send, args=(work,), name=f"notice-{work.row.name}", daemon=True).start()

    def _summarize(self, epoch: int, now_ms: int, row: NoticeRow, channel: str, merged: tuple[MessageRow, ...]) -> None:
        spec = self._spec(row)
        wanted = sorted({number for message in merged for number in message.problems})
        known = {one.number: one for one in self._ledger.notice_problems(row.name, limit=PROBLEMS_A_SUMMARY)}
        rows = [known[number] for number in wanted if number in known]
        kind = "summary" if rows else "test"
        number = int(row.memory.get("messages", 0)) + 1
        content = render(row.name, kind, rows, spec.about)  # type: ignore[arg-type]
        summary = MessageRow(row.name, number, channel, kind, wanted, content, now_ms, now_ms)
        self._ledger.merge_messages(epoch, summary, [message.number for message in merged])

    def _send(self, work: Work) -> None:
        """Send a message, and record the outcome."""
        error = self._refusal(work)
        if error is None:
            error = self._deliver(work)
        while not self._record(work, error):
            # If the outcome isn't recorded, a received message would be sent again.
            if self._closing.wait(1.0):
                return

    def _refusal(self, work: Work) -> str | None:
        """Return the reason why an attempt must not be made. None if it can be made."""
        if work.message.channel not in work.spec.channels:
            return f"the document of notice {work.row.name} has no channel {work.message.channel} any more"
        if self._monotonic_s() - work.begun_s > self._times.lease_ms / 1_000 - self._tools.timeout_s - _SPARE_S:
            return "this process was paused before the attempt, and another service can make it"
        return None

    def _deliver(self, work: Work) -> str | None:
        """Send a message to its receiver. Return the reason if it wasn't confirmed. None if it was."""
        channel, message = work.spec.channels[work.message.channel], work.message
        outgoing = Outgoing(f"{work.row.name}@{work.row.created_ms}-{message.number}", message.made_ms, message.content)
        try:
            channel_of(channel.keyword).send(channel.options, outgoing, self._tools)
        except StrandlineError as refused:
            return str(refused)
        except Exception as refused:  # edge of a thread: a bug must not block the channel
            logger.exception("can't send a notice", action="notices", notice=work.row.name)
            return f"internal error {type(refused).__name__}; see the log of the control service"
        return None

    def _record(self, work: Work, error: str | None) -> bool:
        """Record the outcome of an attempt. Return False if this must be retried."""
        message, attempt = work.message, work.attempt
        is_last = message.channel not in work.spec.channels or gives_up(message, attempt.begun_ms)
        event = None
        facts = {"notice": message.notice, "message": message.number, "channel": message.channel}
        if error is not None and is_last:
            text = f"notice {message.notice}: message {message.number} was given up: {error}"
            event = NewEvent("notice_given_up", text, facts=facts | {"error": error})
        elif error is not None and attempt.number == 1:
            text = f"notice {message.notice}: {message.channel} did not confirm message {message.number}: {error}"
            event = NewEvent("notice_not_confirmed", text, facts=facts | {"error": error})
        if error is not None:
            logger.warning("a notice was not confirmed", action="notices", error=error, **facts)
        try:
            self._ledger.end_attempt(attempt, error, pause_ms(attempt.number), event, gives_up=is_last)
        except StrandlineError as unsaid:
            logger.warning("can't record the outcome of a notice", action="notices", error=str(unsaid))
            return False
        with self._lock:
            self._sending.pop((work.row.name, message.channel), None)
        return True

    def _run(self) -> None:
        is_released = False
        while not self._closing.is_set():
            try:
                if not is_released:
                    self._ledger.release_notices(self._service)  # lease of an earlier process of this service
                    is_released = True
                self.step()
                if self._said:
                    logger.info("notices work again", action="notices")
                self._said = ""
            except StrandlineError as error:
                self._renew_at_s = 0.0
                self._report(error)
            except Exception as error:  # edge: without a log line, the end of the thread would go unnoticed
                if self._said != repr(error):
                    logger.exception("notices failed", action="notices")
                self._said = repr(error)
            self._closing.wait(self._times.send_s)

    def _report(self, error: StrandlineError) -> None:
        """Log an error once, while its kind doesn't change."""
        if self._said != error.code:
            logger.error("can't process notices", action="notices", error=str(error))
        self._said = error.code
