"""Images → features → correlation → match-to-match attention → flow. Read ``transformatcher.py`` first."""
