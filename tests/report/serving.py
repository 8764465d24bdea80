"""The live report of a run, served by a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmr1.report.live import live_app
from mmr1.report.run_reader import open_run
from mmr1.serving import http_server, listen


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address at which the run in ``folder`` is served."""
    with listen("127.0.0.1", 0) as listener:
        server = http_server(live_app([open_run(folder)]))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
