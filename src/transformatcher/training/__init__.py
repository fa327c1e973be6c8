"""A config → a trained matcher; studies → tables of trained matchers."""
