"""Statements of the hot paths: compiled once for each dialect, then given to the driver itself.

SQLAlchemy takes about 45 microseconds for one execution, SQLite 3 for a row by its key, and a model call needs a dozen
of them. In: a connection on which a transaction has begun, and a value for each parameter. Out: plain tuples, as the
driver gives them (SQLite's booleans are 0 and 1). Errors are SQLAlchemy's, as everywhere in the store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str
    names: Sequence[str] | None
    """Parameters by position; None = by name."""
    constants: Mapping[str, Any]
    """Parameters that the statement itself has."""
    errors: type[Exception]
    """What the driver raises."""


class Prepared:
    """One statement. It has no parameters that expand, such as those of IN."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def all(self, connection: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Every row."""
        found: list[tuple[Any, ...]] = self.run(connection, values).fetchall()
        return found

    def first(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The first row of one at most."""
        found: tuple[Any, ...] | None = self.run(connection, values).fetchone()
        return found

    def run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Execute; the driver's cursor."""
        compiled = self._compiled.get(connection.dialect.name) or self._compile(connection.dialect)
        given: Any = {**compiled.constants, **values} if compiled.constants else values
        if compiled.names is not None:
            given = [given[name] for name in compiled.names]
        driver: Any = connection.connection.dbapi_connection
        try:
            return driver.execute(compiled.text, given)
        except compiled.errors as error:
            dialect, base = connection.dialect, compiled.errors
            raise DBAPIError.instance(compiled.text, None, error, base, dialect=dialect) from error

    def _compile(self, dialect: Dialect) -> _Compiled:
        made: Any = self._statement.compile(dialect=dialect)
        constants = {name: value for name, value in made.params.items() if value is not None}
        errors = dialect.loaded_dbapi.Error
        found = _Compiled(made.string, made.positiontup, constants, errors)
        self._compiled[dialect.name] = found
        return found
