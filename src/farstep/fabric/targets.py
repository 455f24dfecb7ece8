"""What a fault acts on: names in a script, channels in a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from farstep.fabric.channels import Channel
from farstep.fabric.errors import ConfigError, names, quoted

TARGET_KEYS = ("path", "plane", "site", "sites")
"""Keys that name a target of an emulated network, in the order messages list them."""

ELEMENT_KEYS = ("link", "switch", "nic", "port", "transceiver")
"""Keys that name an element of a topology; only a simulated network has such."""

ANY_SITE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A set of channels, or of links of a topology, by name. What is given must all hold."""

    path: str | None = None
    plane: int | None = None
    site: str | None = None
    sites: tuple[str, str] | None = None
    direction: str | None = None
    link: str | None = None
    switch: str | None = None
    nic: str | None = None
    port: str | None = None
    transceiver: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Target keys that are given; `direction` only narrows and is none of them."""
        return tuple(key for key in (*TARGET_KEYS, *ELEMENT_KEYS) if getattr(self, key) is not None)

    @property
    def element(self) -> tuple[str, str] | None:
        """Key and name of the element meant, if it is one."""
        for key in ELEMENT_KEYS:
            value = getattr(self, key)
            if value is not None:
                return key, value
        return None

    def check(self) -> None:
        """Checks the target without knowing a network.

        Raises:
            ValueError: keys contradict each other or the direction cannot be read.
        """
        if self.path is not None and len(self.keys) > 1:
            raise ValueError(f"path already says where: give path or {' and '.join(self.keys[1:])}")
        if self.element is not None:
            self._check_element(self.element[0])
        if self.site is not None and self.sites is not None:
            raise ValueError("give site or sites, not both")
        if self.sites is not None and self.sites[0] == self.sites[1]:
            raise ValueError(f"sites = {list(self.sites)}: name two different sites")
        if self.direction is not None:
            self._ends()

    def _check_element(self, key: str) -> None:
        others = [other for other in (*self.keys, "direction") if other not in (key, "plane")]
        given = [other for other in others if getattr(self, other) is not None]
        if given:
            raise ValueError(f"{key} already says where: give {key} or {' and '.join(given)}")

    def resolve(self, channels: Iterable[Channel]) -> tuple[Channel, ...]:
        """Returns the channels meant, sorted.

        Raises:
            ConfigError: a name is unknown (the message lists the known ones), nothing matches, or the target is
                an element of a topology.
        """
        if self.element is not None:
            key, value = self.element
            raise ConfigError(
                f"{key} = {quoted(value)}: an emulated network has no such elements; valid here:"
                f" {', '.join(TARGET_KEYS)} (a simulated network has {names(ELEMENT_KEYS)})"
            )
        listed = tuple(channels)
        self._check_names(listed)
        matched = tuple(sorted(channel for channel in listed if self._matches(channel)))
        if not matched:
            raise ConfigError(f"{self}: no path matches all of this together")
        return matched

    def _check_names(self, channels: tuple[Channel, ...]) -> None:
        paths = sorted({channel.path for channel in channels})
        if self.path is not None and not any(fnmatchcase(path, self.path) for path in paths):
            raise ConfigError(f"path = {quoted(self.path)}: no such path; known paths: {names(paths)}")
        planes = sorted({channel.plane for channel in channels})
        if self.plane is not None and self.plane not in planes:
            raise ConfigError(f"plane = {self.plane}: no such plane; known planes: {names(planes)}")
        known = sorted({channel.from_site for channel in channels})
        mentioned = [("site", self.site), *(("sites", site) for site in self.sites or ())]
        if self.direction is not None:
            mentioned += [("direction", site) for site in self._ends() if site != ANY_SITE]
        for key, site in mentioned:
            if site is not None and site not in known:
                raise ConfigError(f"{key} = {quoted(site)}: no such site; known sites: {names(known)}")

    def _matches(self, channel: Channel) -> bool:
        ends = (channel.from_site, channel.to_site)
        if self.path is not None and not fnmatchcase(channel.path, self.path):
            return False
        if self.plane is not None and channel.plane != self.plane:
            return False
        if self.site is not None and self.site not in ends:
            return False
        if self.sites is not None and set(self.sites) != set(ends):
            return False
        if self.direction is not None:
            return all(wanted in (ANY_SITE, site) for wanted, site in zip(self._ends(), ends, strict=True))
        return True

    def _ends(self) -> tuple[str, str]:
        source, arrow, sink = (self.direction or "").partition("->")
        if not arrow or not source.strip() or not sink.strip():
            raise ValueError(
                f'direction = {quoted(self.direction)}: write "SITE->SITE"; "*" stands for any site'
            )
        return source.strip(), sink.strip()

    def __str__(self) -> str:
        parts = [f"{key}={_plain(getattr(self, key))}" for key in self.keys]
        if self.direction is not None:
            parts.append(f"direction={self.direction}")
        return " ".join(parts)


def _plain(value: object) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)
