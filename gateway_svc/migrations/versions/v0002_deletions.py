"""Deleted rollouts, and facts of the store itself: its identity and what deletions leave to know."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make both tables; give the store its identity."""
    op.create_table(
        "deletions",
        sa.Column("change", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("purged", sa.Boolean(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("change"),
    )
    op.create_index("ix_deletions_purged_change", "deletions", ["purged", "change"], unique=False)
    facts = op.create_table(
        "facts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.bulk_insert(
        facts,
        [
            {"name": "store", "number": 0, "text": uuid.uuid4().hex},
            {"name": "deleted_events", "number": 0, "text": ""},
            {"name": "deleted_ordinal", "number": 0, "text": ""},
            {"name": "forgotten_change", "number": 0, "text": ""},
        ],
    )
