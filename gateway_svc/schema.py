"""The tables of the record, as they are now. Upgrades from older forms lie in `migrations/`.

Rows refer to rollouts by `ordinal` and to calls by `sequence`: small integers. Large columns come last in a row, so
that SQLite reads the others without them. Times are microseconds; enums are stored as their lower-case words.
"""

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, MetaData, Table, Text

Number = BigInteger().with_variant(Integer, "sqlite")
"""64 bits everywhere: SQLite's INTEGER has as many, and must be called so as a primary key."""

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"}
)

runs = Table(
    "runs",
    metadata,
    Column("ordinal", Integer, primary_key=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("policy", Text, nullable=False),
    Column("train_sampling", Text, nullable=False),
    Column("eval_sampling", Text, nullable=False),
    Column("max_hold", BigInteger, nullable=False),
    Column("phase", Text, nullable=False),
    Column("create_time", BigInteger, nullable=False),
)
"""Samplings are JSON of what is set."""

models = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("engines", Text, nullable=False),
    Column("weight_version", Text, nullable=False),
    Column("weights_path", Text, nullable=False),
    Column("tokenizer_path", Text, nullable=False),
    Column("context_length", Integer, nullable=False),
    Column("vocabulary_size", Integer, nullable=False),
    Column("create_time", BigInteger, nullable=False),
)
"""Engines are a JSON list of those without a lease; an older gateway wrote their base URLs alone."""

engines = Table(
    "engines",
    metadata,
    Column("model", Text, primary_key=True),
    Column("engine_id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("max_in_flight", Integer, nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("heartbeat_time", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Engines with a lease. No time is compared with another machine's clock: whether a lease has expired is what each
gateway sees of `heartbeat_time` changing."""

rollouts = Table(
    "rollouts",
    metadata,
    Column("ordinal", Number, primary_key=True),
    Column("rollout_id", Text, nullable=False, unique=True),
    Column("run_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("split", Text, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("change", BigInteger, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", Text),
    Column("message", Text, nullable=False),
    Column("start_time", BigInteger),
    Column("finish_time", BigInteger),
    Column("revision", Integer, nullable=False),
    Column("input", LargeBinary, nullable=False),
    Column("runner", LargeBinary, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Index("ix_rollouts_run_id_ordinal", "run_id", "ordinal"),
    Index("ix_rollouts_state_ordinal", "state", "ordinal"),
    Index("ix_rollouts_group_id_ordinal", "group_id", "ordinal"),
)
"""`change` is the gateway-wide number of the last change; `outcome` that of the current attempt."""

attempts = Table(
    "attempts",
    metadata,
    Column("rollout", Number, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("start_time", BigInteger, nullable=False),
    Column("outcome", Text),
    Column("message", Text, nullable=False),
    Column("finish_time", BigInteger),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("sequence", Number, primary_key=True),
    Column("rollout", Number, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("may_ignore", Boolean, nullable=False),
    Column("kind", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("value", Float),
    Column("body", LargeBinary, nullable=False),
    Index("ix_events_rollout_sequence", "rollout", "sequence"),
    sqlite_autoincrement=True,
)
"""`kind` call | reward | note | log. reward: label = source, call_id, value. note: label = type, body = Struct.
log: label = stream, body = UTF-8 text. call: call_id, the rest in `calls` under the same sequence."""

calls = Table(
    "calls",
    metadata,
    Column("sequence", Number, primary_key=True),
    Column("call_id", Text, nullable=False, unique=True),
    Column("rollout", Number, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("prompt_count", Integer, nullable=False),
    Column("response_count", Integer, nullable=False),
    Column("length", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("parent", Number),
    Column("parent_call_id", Text, nullable=False),
    Column("shared", Integer, nullable=False),
    Column("delivered", Boolean, nullable=False),
    Column("head", Text, nullable=False),
    Column("response", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("suffix", LargeBinary, nullable=False),
    Index("ix_calls_rollout_attempt_length", "rollout", "attempt", "length"),
)
"""The prompt is the first `shared` tokens of the parent's prompt + response, then `suffix`: all of the parent's tokens
where the prompt continues it, its prompt alone where both are samplings of one prompt. `length` and `digest`
(BLAKE2b, 128 bits) are those of prompt + response. `head` is JSON of everything else that is not searched for."""

requests = Table(
    "requests",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("method", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("create_time", BigInteger, nullable=False, index=True),
    Column("answer", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""Requests that were answered, for 24 hours; `answer` is what the method needs to answer the same again."""

deletions = Table(
    "deletions",
    metadata,
    Column("change", BigInteger, primary_key=True, autoincrement=False),
    Column("ordinal", Number, nullable=False),
    Column("rollout_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("purged", Boolean, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Index("ix_deletions_purged_change", "purged", "change"),
)
"""Rollouts that were deleted, by the number of that change; not `purged` = attempts, events or calls are left."""

facts = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
)
"""What the store knows of itself. `store`: its identity, in every resume token. `deleted_events`: events that were
deleted, which explains gaps of the sequence. `deleted_ordinal`: the highest ordinal of a deleted rollout, never given
again. `forgotten_change`: changes up to here have lost their deletions. `deleting RUN`: this run is being deleted."""

turns = Table(
    "turns",
    metadata,
    Column("rollout", Number, primary_key=True),
    Column("sequence", Number, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("turn", LargeBinary, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("lost", Boolean, nullable=False),
    sqlite_with_rowid=False,
)
"""By rollout and call: the digest of what the call answers (`retry.turn`), the latest request that was given it, and
whether that request's harness went away before the reply was written out in full."""

counters = Table(
    "counters",
    metadata,
    Column("key", Integer, primary_key=True, autoincrement=False),
    Column("change", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("catalog", BigInteger, nullable=False),
)
"""One row: the last numbers given, of a change of a rollout, of an event, and of a change of runs or models. On
PostgreSQL the writer locks it for its transaction, so that numbers become visible in their order."""
