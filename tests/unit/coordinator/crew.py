"""Members that say hello to a coordinator's mind, without any network."""

import time

from farstep.coordinator import Coordinator
from farstep.membership import MemberInfo, MembershipConfig
from farstep.membership import messages as wire
from farstep.membership.effects import Note
from farstep.membership.proposer import Proposer
from farstep.membership.roster import Absence

SECOND_NS = 1_000_000_000


def config(**values):
    return MembershipConfig(**{"settle_s": 0, "groups": 2, "min_groups": 1, **values})


class Crew:
    """A proposer, its clock, and members that answer as those do that agree with everything."""

    def __init__(self, proposer: Proposer | None = None, **values):
        self.now_ns = time.monotonic_ns()
        self.proposer = proposer or Proposer(config(**values), self.now_ns)
        self.infos: dict[int, MemberInfo] = {}
        self.notes: list[Note] = []

    def join(self, name, wants="seat", **more):
        """Has a member connect; returns its link."""
        link = len(self.infos) + 1
        info = MemberInfo.create(name, **more).model_copy(update={"process": ""})
        self.infos[link] = info
        self.say(link, wire.Hello(run="run", info=info, wants=wants))
        self.say(link, wire.Heartbeat(step=0, rtt_ns=2_000_000))
        return link

    def say(self, link, message):
        self.proposer.on_message(link, message, self.now_ns)
        self.settle()

    def die(self, link):
        """Breaks a member's line and lets the coordinator find out that it has exited."""
        self.proposer.on_closed(link, Absence.LOST, self.now_ns)
        self.proposer.on_process_state(self.infos[link].member_id, True, self.now_ns)
        self.settle()

    def pass_time(self, seconds):
        """Lets time pass in small steps: what a coordinator sleeps through does not count as silence."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.now_ns < end_ns:
            self.now_ns = min(end_ns, self.now_ns + SECOND_NS // 100)
            self.proposer.on_tick(self.now_ns)
            self.settle()

    def settle(self):
        """Answers all questions of the coordinator."""
        while effects := self.proposer.take_effects():
            for effect in effects:
                if isinstance(effect, Note):
                    self.notes.append(effect)
                    continue
                match getattr(effect, "message", None):
                    case wire.Prepare(number=number, ballot=ballot):
                        answer = wire.Promise(number=number, ballot=ballot)
                    case wire.Accept(ballot=ballot, value=value):
                        answer = wire.AcceptedReply(number=value.number, ballot=ballot)
                    case _:
                        continue
                self.proposer.on_message(effect.link, answer, self.now_ns)
        self.proposer.on_tick(self.now_ns)
        if self.proposer.wait_ns() <= 0:
            self.now_ns += 1


def staffed_coordinator(*names, **values):
    """Returns a coordinator whose run has begun with these members, and the crew."""
    coordinator = Coordinator(config(groups=len(names) or None, **values))
    crew = Crew(coordinator.proposer)
    for name in names:
        crew.join(name, site=name.partition("-")[0])
    crew.pass_time(0.01)
    return coordinator, crew
