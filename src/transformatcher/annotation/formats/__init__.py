"""An annotation project ↔ the files of other tools."""
