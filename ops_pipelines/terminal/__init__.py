"""What the command line and the web process answer: commands, gathered values, their JSON and their documents.

`cli` mounts the `..._commands`; `server` imports the `..._pages`, `approval`, `status` and `vital_signs`. `edge` holds
what all commands share. Within, a command gathers, `outlook`, `incidents`, `explain`, `nodes` and `status` say what is
answered, and `report.terminal` prints it. Nobody else imports this, but drills read `outlook` and `incidents`.
"""
