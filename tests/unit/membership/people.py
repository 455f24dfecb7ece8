"""Members and generations for tests."""

from __future__ import annotations

from farstep.membership.plan import Person, Standing
from farstep.membership.records import Ballot, Generation, MemberInfo


def info(name: str, serial: int = 1, *, site: str = "", host: str = "") -> MemberInfo:
    return MemberInfo(member_id=f"{name}/{serial:08x}", name=name, site=site, host=host or f"host-{name}")


def generation(seats: str, spares: str = "", *, number: int = 1, previous: str = "") -> Generation:
    """Makes a generation out of one-letter names."""
    return Generation(
        run_id="run/00000001",
        number=number,
        ballot=Ballot(0, "first"),
        previous=previous,
        seats=tuple(info(name) for name in seats),
        spares=tuple(info(name) for name in spares),
    )


def person(name: str, standing: Standing = Standing.HERE, **more) -> Person:
    more.setdefault("order", ord(name[0]))
    more.setdefault("is_ready", True)
    site = more.pop("site", "")
    return Person(info(name, site=site), standing=standing, **more)


def people(*who: Person) -> dict[str, Person]:
    return {one.info.member_id: one for one in who}


def names(members) -> str:
    return "".join(member.name for member in members)
