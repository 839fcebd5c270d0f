"""``python -m bireme``: the ``bireme`` command, where no script of that name is on the path."""

from __future__ import annotations

from .server.cli import main

if __name__ == "__main__":
    main()
