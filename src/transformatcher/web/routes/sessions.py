"""Routes: open, read and close a session."""

from typing import Any

from fastapi import APIRouter

from transformatcher import __version__
from transformatcher.web.dependencies import CurrentServices, CurrentSession
from transformatcher.web.page_state import session_json

router = APIRouter(prefix="/api/sessions")


@router.post("", status_code=201)
def create_session(services: CurrentServices) -> dict[str, Any]:
    """Open a session; beside its state, the response has what the page needs to know about the server."""
    session = services.sessions.create()
    return session_json(session) | {
        "session": session.id,
        "version": __version__,
        "local": services.is_local,
        "calibrated": services.matcher.calibration is not None,
        "limits": {"upload_bytes": services.limits.upload_bytes, "photos": services.limits.photos},
    }


@router.get("/{session_id}")
def read_session(session: CurrentSession) -> dict[str, Any]:
    """The session's state."""
    with session.lock:
        return session_json(session)


@router.delete("/{session_id}", status_code=204)
@router.post("/{session_id}/close", status_code=204)  # a browser that leaves the page can only send POST
def close_session(session_id: str, services: CurrentServices) -> None:
    """Delete the session with its photos."""
    services.sessions.close(session_id)
