"""The ``transformatcher`` command: one module for each sub-command, with ``add_arguments`` and ``run``."""
