"""Entry point of Alembic. `strandline.ledger.schema` runs it in a transaction that it opens and commits.

It imports no models: a revision contains everything that it creates, so that it never creates anything else.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
if connection.dialect.name == "postgresql":
    # A migration that waits for a table lock blocks all writes of running jobs, so it fails instead.
    connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
    connection.exec_driver_sql("SET LOCAL statement_timeout = '60s'")
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
