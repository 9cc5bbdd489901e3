"""Facts as data: tables whose every row names its source and date. Read by `resources.config_files`."""
