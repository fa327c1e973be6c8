"""Images → features → correlation → match-to-match attention → flow. Read ``matcher.py`` first."""
