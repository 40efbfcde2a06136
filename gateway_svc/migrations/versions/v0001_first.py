"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "attempts",
        sa.Column("rollout", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("finish_time", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("rollout", "number"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "calls",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("rollout", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("prompt_count", sa.Integer(), nullable=False),
        sa.Column("response_count", sa.Integer(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("parent_call_id", sa.Text(), nullable=False),
        sa.Column("shared", sa.Integer(), nullable=False),
        sa.Column("delivered", sa.Boolean(), nullable=False),
        sa.Column("head", sa.Text(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("suffix", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("call_id", name=op.f("uq_calls_call_id")),
    )
    op.create_index("ix_calls_rollout_attempt_length", "calls", ["rollout", "attempt", "length"], unique=False)
    op.create_table(
        "events",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("rollout", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("may_ignore", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_rollout_sequence", "events", ["rollout", "sequence"], unique=False)
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("engines", sa.Text(), nullable=False),
        sa.Column("weight_version", sa.Text(), nullable=False),
        sa.Column("weights_path", sa.Text(), nullable=False),
        sa.Column("tokenizer_path", sa.Text(), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column("vocabulary_size", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "requests",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("request_id"),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_requests_create_time"), "requests", ["create_time"], unique=False)
    op.create_table(
        "rollouts",
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=True),
        sa.Column("finish_time", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("runner", sa.LargeBinary(), nullable=False),
        sa.Column("metadata", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("ordinal"),
        sa.UniqueConstraint("change", name=op.f("uq_rollouts_change")),
        sa.UniqueConstraint("rollout_id", name=op.f("uq_rollouts_rollout_id")),
    )
    op.create_index("ix_rollouts_group_id_ordinal", "rollouts", ["group_id", "ordinal"], unique=False)
    op.create_index("ix_rollouts_run_id_ordinal", "rollouts", ["run_id", "ordinal"], unique=False)
    op.create_index("ix_rollouts_state_ordinal", "rollouts", ["state", "ordinal"], unique=False)
    op.create_table(
        "runs",
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("train_sampling", sa.Text(), nullable=False),
        sa.Column("eval_sampling", sa.Text(), nullable=False),
        sa.Column("max_hold", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("ordinal"),
        sa.UniqueConstraint("run_id", name=op.f("uq_runs_run_id")),
    )
