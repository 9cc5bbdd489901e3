"""What alembic runs to migrate: it takes the connection, and its open transaction, from `database`.

There is no alembic.ini and no offline mode: a ledger is upgraded when it is opened, and by nothing else.
"""

from alembic import context

from ops_pipelines.resources.ledger.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
