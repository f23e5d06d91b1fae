"""Detection of stores that do not answer: a circuit breaker for the requests of a mount (docs/design/015-hung-stores.md).

A request that misses its deadline is evidence against its key alone, as long as others of its kind are answered. If none was
answered since the request began, the store counts as hung for that kind of request:

    ANSWERS   every request goes to the store
    HUNG      a request fails at once; a probe asks the store, at most once in `PAUSE` seconds and only while there are requests
              (a request that finds a new probe waits for it, `GRACE` seconds at most); any answer ends the state

A key that missed a deadline does not cost a second one: for `PAUSE` seconds the next request for it gets `GRACE` seconds, and if that
was too little, none. The kernel repeats a failed read page by page, one reader after the other.

Kinds are separate because backends are: names may come from a cache, writes may hang where reads do not. A change cannot be tried on
another key, so changes count as hung by themselves only after two keys were not answered; if neither values nor names are answered,
changes are not tried either.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from zarrfs.errors import StoreTimeout
from zarrfs.keys import Key, Prefix

log = logging.getLogger(__name__)

Target = Key | Prefix

PAUSE = 1.0
"""Seconds between the starts of two probes, and during which a key that missed its deadline gets `GRACE` at most."""
GRACE = 0.25
"""Seconds that a request waits for a probe, or for a key that has just missed its deadline."""

# Up to this number of unanswered keys may merely be slow; then another key is probed.
_FEW = 4
# Unanswered changes of this number of keys count as a store that accepts no changes.
_ENOUGH_CHANGES = 2
_MAX_LATE = 10_000
# Probed before any other key was answered. Their absence is an answer, too.
_USUAL_KEYS = ("zarr.json", ".zgroup")


class Subject(enum.Enum):
    """Subject of a request. Locks are no evidence: another mount may hold one indefinitely."""

    VALUES = "values"
    NAMES = "names"
    CHANGES = "changes"
    LOCKS = "locks"


@dataclass(slots=True)
class _Circuit:
    """State of one kind of request: ``unanswered`` places since the last answer; ``last``, a place that was answered."""

    answered_at: float = float("-inf")
    unanswered: set[Target | None] = field(default_factory=set)
    last: Target | None = None
    hung_since: float | None = None
    answers: trio.Event = field(default_factory=trio.Event)
    probed_at: float = float("-inf")
    next_probe: float = float("-inf")
    has_patient_probe: bool = False
    logged: bool = False


@dataclass(slots=True)
class _Late:
    """A request that missed its deadline; ``tried`` is True if it was repeated and failed again."""

    until: float
    tried: bool = False


class StoreHealth:
    """The health of the store called ``name``, each of whose requests may take ``seconds``.

    ``ask(kind, place)`` sends the smallest request of kind `VALUES` or `NAMES`; ``start_soon`` runs it in the background. ``part`` is the
    part of the store (`Store.part_of`) that this health is of.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        *,
        ask: Callable[[Subject, Target], Awaitable[object]],
        start_soon: Callable[..., None],
        part: str,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._pause = min(PAUSE, seconds)
        self._grace = min(GRACE, seconds)
        self._ask = ask
        self._start_soon = start_soon
        self._values, self._names, self._changes = _Circuit(), _Circuit(), _Circuit()
        self._circuits = {Subject.VALUES: self._values, Subject.NAMES: self._names, Subject.CHANGES: self._changes}
        self._late: dict[tuple[Subject, tuple[Target, ...]], _Late] = {}
        self._usual_keys = tuple(Key(f"{part}/{name}" if part else name) for name in _USUAL_KEYS)

    async def admit(self, kind: Subject, targets: tuple[Target, ...]) -> float | None:
        """Return the seconds that a request for ``targets`` may take; None if it has to fail at once."""
        if kind is Subject.VALUES or kind is Subject.NAMES:
            self._probe_if_due(kind, targets)
            patience = self._patience(kind, targets)
            return patience if patience is not None and await self._answers_again(kind, targets) else None
        if self._all_hung:
            self._probe_if_due(Subject.NAMES, targets)
            if not await self._answers_again(Subject.VALUES, targets):
                await self._answers_again(Subject.NAMES, targets)
            if self._all_hung:
                return None
        if self._changes.hung_since is not None:
            now = trio.current_time()
            if now < self._changes.next_probe:
                return None
            if kind is Subject.CHANGES:
                # This request is the probe.
                self._changes.next_probe = now + self._seconds
        return self._seconds

    def answered(self, kind: Subject, targets: tuple[Target, ...]) -> None:
        """Record that the store answered a request, with a result or an error."""
        circuit = self._circuits.get(kind)
        if circuit is None:
            return
        self._answered(kind, circuit)
        if circuit.unanswered:
            circuit.unanswered.clear()
        if targets:
            circuit.last = targets[0]
        if self._late:
            self._late.pop((kind, targets), None)
            for target in targets:
                self._late.pop((kind, (target,)), None)

    def missed(self, kind: Subject, targets: tuple[Target, ...], began: float) -> None:
        """Record that a request for ``targets`` that started at ``began`` got no answer."""
        now = trio.current_time()
        circuit = self._circuits.get(kind)
        if circuit is not None:
            circuit.unanswered.add(targets[0] if targets else None)
        if kind is Subject.VALUES or kind is Subject.NAMES:
            self._remember(kind, targets, now)
        self._suspect(Subject.VALUES, began, now)
        self._suspect(Subject.NAMES, began, now)
        if len(self._changes.unanswered) >= _ENOUGH_CHANGES:
            self._suspect(Subject.CHANGES, began, now + self._pause)

    def given_up(self, kind: Subject, targets: tuple[Target, ...], began: float) -> None:
        """Record that the backend gave up a request by its own deadline; an immediate "busy" counts as an answer."""
        if trio.current_time() - began < self._pause:
            self.answered(kind, targets)
        else:
            self.missed(kind, targets, began)

    # --- deadlines of keys --------------------------------------------------------------------------------------------------

    def _patience(self, kind: Subject, targets: tuple[Target, ...]) -> float | None:
        if not self._late or not targets:
            return self._seconds
        now = trio.current_time()
        same = self._late.get((kind, targets))
        if same is not None and same.tried and now < same.until:
            return None
        # Any of several keys may have been the slow one; a request without it is answered now.
        each = [self._late.get((kind, (target,))) for target in targets]
        return self._grace if all(late is not None and now < late.until for late in each) else self._seconds

    def _remember(self, kind: Subject, targets: tuple[Target, ...], now: float) -> None:
        same = self._late.get((kind, targets))
        if same is not None and now < same.until:
            same.tried = True
            return
        for missed in dict.fromkeys([targets, *((target,) for target in targets)]):
            late = self._late.pop((kind, missed), None)
            self._late[kind, missed] = late if late is not None and now < late.until else _Late(now + self._pause)
        while len(self._late) > _MAX_LATE:
            del self._late[next(iter(self._late))]

    # --- state of the store -------------------------------------------------------------------------------------------------

    @property
    def _all_hung(self) -> bool:
        """Return True if neither values nor names are answered, and no change was since."""
        since = (self._values.hung_since, self._names.hung_since)
        return all(each is not None and each >= self._changes.answered_at for each in since)

    def _suspect(self, kind: Subject, began: float, next_probe: float) -> None:
        circuit = self._circuits[kind]
        if circuit.hung_since is None and circuit.answered_at <= began:
            circuit.hung_since, circuit.next_probe, circuit.probed_at = began, next_probe, float("-inf")
            circuit.answers, circuit.logged = trio.Event(), False

    def _answered(self, kind: Subject, circuit: _Circuit) -> None:
        circuit.answered_at = trio.current_time()
        if circuit.hung_since is not None:
            if circuit.logged:
                log.info("%s: %s: answered again after %.1f s", self._name, kind.value, circuit.answered_at - circuit.hung_since)
            circuit.hung_since = None
            circuit.answers.set()

    async def _answers_again(self, kind: Subject, targets: tuple[Target, ...]) -> bool:
        """Return True if the store answers; wait for a new probe first."""
        circuit = self._circuits[kind]
        if circuit.hung_since is None:
            return True
        self._probe_if_due(kind, targets)
        if trio.current_time() < circuit.probed_at + self._grace:
            with trio.move_on_at(circuit.probed_at + self._grace):
                await circuit.answers.wait()
                return True
        if not circuit.logged:
            circuit.logged = True
            log.info("%s: %s: no request answered for %g s, failing all until one is", self._name, kind.value, self._seconds)
        return False

    def _probe_if_due(self, kind: Subject, targets: tuple[Target, ...]) -> None:
        circuit, now = self._circuits[kind], trio.current_time()
        if circuit.hung_since is not None and now >= circuit.next_probe:
            circuit.probed_at, circuit.next_probe = now, now + self._pause
            self._start_soon(self._probe, kind, self._target_to_probe(kind, targets), not circuit.has_patient_probe)

    async def _probe(self, kind: Subject, target: Target, patient: bool) -> None:
        """Probe one place.

        A patient probe waits as long as a request may. Beside it, each later probe replaces the one before, since an answer may be lost.
        """
        circuit = self._circuits[kind]
        if patient:
            circuit.has_patient_probe = True
        try:
            with trio.move_on_after(self._seconds if patient else self._pause):
                try:
                    await self._ask(kind, target)
                except StoreTimeout:
                    return
                except Exception as error:  # noqa: BLE001 (an error is an answer)
                    log.debug("%s: probe of %r: %s", self._name, target, error)
                self._answered(kind, circuit)
        finally:
            if patient:
                circuit.has_patient_probe = False

    def _target_to_probe(self, kind: Subject, targets: tuple[Target, ...]) -> Target:
        """Return the place to probe: a requested one, unless it may itself be slow."""
        target = next((each for each in targets if kind is Subject.NAMES or isinstance(each, Key)), None)
        circuit = self._circuits[kind]
        if target is not None and ((kind, (target,)) not in self._late or len(circuit.unanswered) >= _FEW):
            return target
        known = (circuit.last, *self._usual_keys)
        return next(
            (each for each in known if each is not None and (kind, (each,)) not in self._late), target or self._usual_keys[0]
        )
