"""The REST interface: what operators, dashboards and scripts ask of a coordinator."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farstep.coordinator.body import Coordinator
from farstep.coordinator.guard import peer_name, require_operator, require_reader
from farstep.coordinator.journal import KEPT_LINES, Journal
from farstep.coordinator.metrics import CONTENT_TYPE, Metrics
from farstep.coordinator.status import MemberStatus, Status, config_fields, status_of
from farstep.membership.effects import CommandError

__all__ = ["make_router"]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Reason(_Body):
    """Why an operator does something; it is written into the event log."""

    reason: Annotated[str, Field(max_length=500)] = ""


class Override(_Body):
    """Decides without members that cannot vote, when too few are left to decide.

    Whoever sends this vouches that nobody trains with those members elsewhere.
    """

    generation: Annotated[int, Field(ge=1)]
    """Number of the current generation, so that nothing is overridden that has changed meanwhile."""
    drop: Annotated[list[str], Field(min_length=1, max_length=1024)]
    """Names of the members to go on without."""
    is_sure: bool
    """Must be true."""


class Changes(_Body):
    """Group counts to change while the run goes on; what is left out stays."""

    min_groups: Annotated[int, Field(ge=1)] | None = None
    max_groups: Annotated[int, Field(ge=1, le=1024)] | None = None
    spares: Annotated[int, Field(ge=0, le=1024)] | None = None
    fixed_seats: bool | None = None
    silence_s: Annotated[float, Field(gt=0, le=3600)] | None = None


class Done(BaseModel):
    """What was done, in words."""

    done: str


def make_router(coordinator: Coordinator, journal: Journal, metrics: Metrics) -> APIRouter:
    """Makes the routes of one coordinator; reading needs a certificate, commanding an operator's."""
    started_ns = time.monotonic_ns()
    router = APIRouter(dependencies=[Depends(require_reader)])

    def now() -> Status:
        return status_of(coordinator.proposer, time.monotonic_ns(), started_ns=started_ns)

    @router.get("/v1/status", summary="Everything this coordinator knows now")
    async def status() -> Status:
        return now()

    @router.get("/v1/members", summary="Members of the generation, and everybody who is connected")
    async def members() -> list[MemberStatus]:
        return now().members

    @router.get("/v1/generations", summary="Generations since this coordinator started, oldest first")
    async def generations() -> list[dict[str, Any]]:
        return journal.since(0, kinds=frozenset({"generation", "generation_learned"}))

    @router.get("/v1/events", summary="Lines of the event log that are in memory, oldest first")
    async def events(
        since: Annotated[int, Query(ge=0, description="only lines with a higher id")] = 0,
        limit: Annotated[int, Query(ge=1, le=KEPT_LINES, description="the newest so many of them")] = 1000,
        kind: Annotated[list[str] | None, Query(description="only these kinds")] = None,
    ) -> list[dict[str, Any]]:
        return journal.since(since, limit=limit, kinds=frozenset(kind or ()))

    @router.get("/v1/events/stream", summary="Server-sent events: every line as it comes")
    async def stream(
        request: Request, since: Annotated[int, Query(ge=0, description="only lines with a higher id")] = 0
    ) -> StreamingResponse:
        first = _resumed(request.headers.get("last-event-id"), coordinator.proposer.name, since)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            _sse(journal, coordinator.proposer.name, first), media_type="text/event-stream", headers=headers
        )

    @router.get("/metrics", summary="Figures for Prometheus")
    async def prometheus() -> PlainTextResponse:
        text = metrics.render(now(), coordinator, num_unwritten=journal.num_unwritten)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    router.include_router(_commands(coordinator, journal))
    return router


def _commands(coordinator: Coordinator, journal: Journal) -> APIRouter:
    """Makes the routes that change something."""
    commands = APIRouter(dependencies=[Depends(require_operator)])

    def carry_out(request: Request, name: str, *arguments: Any) -> Done:
        try:
            done = coordinator.command(name, *arguments)
        except CommandError as error:
            raise HTTPException(409, str(error)) from error
        journal.add("operator", {"who": peer_name(request), "did": done})
        return Done(done=done)

    @commands.post("/v1/members/{name}/drain", summary="Have a member leave at the next step boundary")
    async def drain(name: str, body: Reason, request: Request) -> Done:
        return carry_out(request, "drain", name, body.reason)

    @commands.post("/v1/members/{name}/evict", summary="Take a member out at once; the step is run again")
    async def evict(name: str, body: Reason, request: Request) -> Done:
        return carry_out(request, "evict", name, body.reason)

    @commands.post("/v1/override", summary="Go on without members that cannot vote")
    async def override(body: Override, request: Request) -> Done:
        if not body.is_sure:
            raise HTTPException(
                409, "is_sure is false; it must be true: two histories can arise if those members still train"
            )
        return carry_out(request, "override", body.generation, body.drop)

    @commands.patch("/v1/config", summary="Change group counts while the run goes on")
    async def configure(body: Changes, request: Request) -> dict[str, Any]:
        changes = body.model_dump(exclude_none=True)
        if not changes:
            raise HTTPException(422, f"nothing to change; valid: {', '.join(Changes.model_fields)}")
        try:
            config = coordinator.command("configure", changes)
        except ValidationError as error:
            raise HTTPException(422, "; ".join(str(item["msg"]) for item in error.errors())) from error
        journal.add("operator", {"who": peer_name(request), "did": f"changed {changes}"})
        return config_fields(config)

    return commands


def _resumed(last_event_id: str | None, coordinator: str, since: int) -> int:
    """Returns the id of the last line that a follower has, 0 if it has those of another coordinator."""
    if last_event_id is None:
        return since
    name, _, number = last_event_id.rpartition("/")
    is_ours = name == coordinator and number.isascii() and number.isdigit() and len(number) < 19
    return int(number) if is_ours else 0


async def _sse(journal: Journal, coordinator: str, last_id: int) -> AsyncIterator[str]:
    """Renders lines as server-sent events; their ids name the coordinator, as each counts from 1."""
    yield "retry: 500\n\n"
    async for line in journal.follow(last_id):
        if line is None:
            yield ": still here\n\n"
        else:
            yield f"id: {coordinator}/{line['id']}\nevent: line\ndata: {json.dumps(line)}\n\n"
