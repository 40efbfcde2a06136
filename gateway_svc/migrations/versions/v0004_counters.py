"""One row of counters, and on PostgreSQL 64 bits for what grows with every event."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

WIDER = {
    "events": ("sequence", "rollout"),
    "calls": ("sequence", "rollout", "parent"),
    "rollouts": ("ordinal",),
    "attempts": ("rollout",),
    "deletions": ("ordinal",),
    "turns": ("rollout", "sequence"),
}


def upgrade() -> None:
    """Make the table from what is stored."""
    counters = op.create_table(
        "counters",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("catalog", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    connection = op.get_bind()
    last = {
        "change": "SELECT max(n) FROM (SELECT max(change) AS n FROM rollouts UNION ALL "
        "SELECT max(change) FROM deletions UNION ALL SELECT number FROM facts WHERE name = 'forgotten_change') AS all_",
        "sequence": "SELECT max(sequence) FROM events",
    }
    if connection.dialect.name == "sqlite":  # remembers what was deleted
        last["sequence"] = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"
    else:
        for table, columns in WIDER.items():
            for column in columns:
                op.alter_column(table, column, type_=sa.BigInteger())
    found = {name: connection.execute(sa.text(query)).scalar() or 0 for name, query in last.items()}
    op.bulk_insert(counters, [{"key": 1, "catalog": 0} | found])
