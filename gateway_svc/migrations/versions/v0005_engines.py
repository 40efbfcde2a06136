"""Engines that have a lease."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "engines",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model", "engine_id"),
        sqlite_with_rowid=False,
    )
