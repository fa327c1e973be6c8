"""What a request may not do → a status and one sentence for the page."""


class RefusedError(Exception):
    """A request that is not served; the message is shown to the person at the page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
