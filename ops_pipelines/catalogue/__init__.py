"""Facts as data: tables whose every row names its source and date. Read by `resources.catalogue_files`."""
