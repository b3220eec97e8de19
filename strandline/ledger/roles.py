"""Classes with the parts of the ledger that each component may read and change.

A component uses one of these classes, or a single repository, so its signature shows which changes it makes. Each
process opens the class that it needs: `RunLedger.open(url)`. Only the control service has the whole `Ledger`.
"""

from __future__ import annotations

from strandline.ledger.backfills import BackfillReader, Backfills
from strandline.ledger.compaction import Compaction
from strandline.ledger.costs import CostReader, Costs
from strandline.ledger.jobs import JobOrders, JobReader, JobStates, ResultIndices
from strandline.ledger.journal import Journal, JournalReader
from strandline.ledger.leases import LeaseReader, Leases
from strandline.ledger.lifecycle import Lifecycle, LifecycleReader
from strandline.ledger.lookups.sources import LookupSources
from strandline.ledger.lookups.versions import LookupReader, Lookups
from strandline.ledger.notices import NoticeDelivery, NoticeReader, Notices
from strandline.ledger.progress import Checkpoints, CountedProgress, ProgressReader, Runs, SlicePlans
from strandline.ledger.replays import Replays
from strandline.ledger.rewinds import RewindReader
from strandline.ledger.schemas import SchemaReader, Schemas
from strandline.ledger.streams import StreamReader, Streams
from strandline.ledger.tokens import TokenReader, Tokens, TokenUses


class LedgerReader(
    StreamReader,
    JobReader,
    ProgressReader,
    RewindReader,
    CountedProgress,
    CostReader,
    JournalReader,
    LookupReader,
    BackfillReader,
    LifecycleReader,
    LeaseReader,
    NoticeReader,
    SchemaReader,
):
    """All that the ledger contains, except tokens. Changes nothing."""


class JournalLedger(LedgerReader, Journal):
    """For components that only record events, such as audits."""


class PlannerLedger(LedgerReader, SlicePlans, JobStates):
    """For the process that cuts the log into slices."""


class TaskLedger(PlannerLedger, ResultIndices, Schemas):
    """For the processes that Spark starts: the planner, and the tasks."""


class RunLedger(PlannerLedger, Runs, Checkpoints, Costs, ResultIndices, Journal):
    """For the driver of a run."""


class BackfillLedger(LedgerReader, JobStates, Backfills, Journal):
    """For backfills, and the process that computes one."""


class ReplayLedger(LedgerReader, Replays, Journal):
    """For dead letters that are requeued."""


class SupervisionLedger(LedgerReader, Leases, JobStates, Runs, Journal):
    """For the supervisor: leases, runs that crashed, and states of jobs."""


class CompactionLedger(LedgerReader, Compaction):
    """For the removal of old slices."""


class FollowerLedger(LedgerReader, LookupSources, Journal):
    """For the sources of lookups."""


class NoticeLedger(LedgerReader, NoticeDelivery, TokenReader):
    """For conditions of notices, and for messages."""


class ApplyLedger(LedgerReader, Streams, JobOrders, Lookups, LookupSources, Notices, Journal):
    """For documents that are applied, and for lookups and notices that are deleted."""


class LifecycleLedger(LedgerReader, Lifecycle, ResultIndices, Journal):
    """For jobs that are reset or deleted, and streams that are deleted."""


class OrderLedger(JobReader, JobOrders, Journal):
    """For orders to jobs."""


class TokenLedger(TokenReader, Tokens, Journal):
    """For tokens that are created or revoked."""


class GatewayLedger(StreamReader, TokenReader, TokenUses):
    """For gateways: the registered streams, and the tokens of senders."""
