"""Alembic's door: run by `strandline.ledger.schema`, in a transaction that it has opened and that it will commit.

The models stay out of it: a revision says in full what it makes, so that it makes the same for ever.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
if connection.dialect.name == "postgresql":
    # Rather give up than hold the running jobs' writes behind a table lock.
    connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
    connection.exec_driver_sql("SET LOCAL statement_timeout = '60s'")
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
