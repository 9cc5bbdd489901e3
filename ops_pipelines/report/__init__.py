"""How anything is shown: pictures and text that every subject's pages, messages and assets share."""
