"""What each sub-command does: parsed arguments → calls into the library → tables, files and an exit code."""
