"""`ops-pipelines quota`: what teams are owed and get, why, and what other quotas would have done."""

import typer

from ops_pipelines.terminal import quota_propose_commands
from ops_pipelines.terminal.quota_replay import quota_replay

quota_app = typer.Typer(
    help="Share GPUs out among teams: guarantee, borrow, lend.", no_args_is_help=True, rich_markup_mode=None
)
quota_app.command("propose")(quota_propose_commands.propose)
quota_app.command("diff")(quota_propose_commands.diff)
quota_app.command("apply")(quota_propose_commands.apply)
quota_app.command("undo")(quota_propose_commands.undo)
quota_app.command("explain")(quota_propose_commands.explain)
quota_app.command("history")(quota_propose_commands.history)
quota_app.command("replay")(quota_replay)
