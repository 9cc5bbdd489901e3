"""Reaches out: the adapters that implement the ports on real systems, one system a module or package.

`wiring` binds ports to them, and edges (`cli`, `terminal`, `server`, `lake_cli`) read what a site configured; no
subject imports from here. The face: `config.cluster_file` and `config.cluster_config`, `config.policy_file`,
`config.in_force`, `catalogue_files`, `release_files`, `commands`, `files`, `notifier`, `page_files`, `state_files`,
`web_access`, `http_process`, `backup`, `restoring`, `slurm.scheduler`, `slurm.client`, `slurm.quotas`, `prometheus`,
`exporters`, `nvml`, `kernel_log`, `log_files`, `loki`, `alertmanager`, `fleet.command_fleet`, `fleet.redfish_update`,
`fleet.ansible`, `lake.parquet_lake`, `lake.query`, `lake.retention`, `ledger.sql_ledger`. `http_access` is how systems
are asked over HTTP, `documents` how values become text; `dagster_postgres` and `dagster_sqlite` are named in
dagster.yaml. The rest is theirs.
"""
