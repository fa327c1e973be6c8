"""A request → what its route works with: the shared services, the session and the photo that its path names."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from transformatcher.inference.matcher import Matcher
from transformatcher.web.job_queue import JobQueue
from transformatcher.web.predictions import match_missing, missing_pairs
from transformatcher.web.session import Limits, Session, SessionPhoto
from transformatcher.web.session_store import SessionStore
from transformatcher.web.uploads import read_upload


@dataclass(frozen=True)
class Services:
    """What all requests share; ``app.state.services`` holds it."""

    matcher: Matcher
    limits: Limits
    sessions: SessionStore
    jobs: JobQueue
    is_local: bool  # only this machine can reach the server

    def add_photo(self, session: Session, data: bytes, name: str, *, as_source: bool) -> None:
        """Decode a photo, compute its features and add it. Slow: call it in a job."""
        photo = SessionPhoto.encode(read_upload(data, name, self.limits.pixels), self.matcher)
        with session.lock:
            session.add_photo(photo, as_source=as_source)

    def match_missing(self, session: Session) -> None:
        """Match the pairs that a changed pin made necessary, in a job; most changes need none."""
        with session.lock:
            missing = missing_pairs(session)
        if missing:
            self.jobs.run(lambda: match_missing(session, self.matcher))


async def get_services(request: Request) -> Services:
    """The services of the application."""
    services: Services = request.app.state.services
    return services


async def get_session(session_id: str, services: Annotated[Services, Depends(get_services)]) -> Session:
    """The session that the path names, or 404."""
    return services.sessions.get(session_id)


async def get_photo(photo_id: str, session: Annotated[Session, Depends(get_session)]) -> SessionPhoto:
    """The photo that the path names, or 404."""
    return session.photo(photo_id)


CurrentServices = Annotated[Services, Depends(get_services)]
CurrentSession = Annotated[Session, Depends(get_session)]
CurrentPhoto = Annotated[SessionPhoto, Depends(get_photo)]
