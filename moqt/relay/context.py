"""What all parts of a relay share: clock, limits, cache, counters, and who may be asked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moqt.relay.arriving import Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.model import FullTrackName
    from moqt.relay.cache import Cache
    from moqt.relay.clock import Clock
    from moqt.relay.config import RelayConfig
    from moqt.relay.peers import Peer
    from moqt.session.publications import IncomingSubscribe


class RelayContext:
    """Shared by the tracks of one relay; decides nothing by itself."""

    def __init__(
        self,
        config: RelayConfig,
        clock: Clock,
        cache: Cache,
        candidates: Callable[[FullTrackName], Sequence[Peer]],
    ) -> None:
        self.config = config
        self.clock = clock
        self.cache = cache
        #: Sessions that may have a track, those with the exact namespace first.
        self.candidates = candidates
        #: Forgets a track that is only cached and costs more than it must; False: there is none.
        self.make_room: Callable[[], bool] = lambda: False
        self.unfinished = Unfinished(config.unfinished)
        #: Events by name: objects in, hits, misses, fetches upstream and so on.
        self.counts: Counter[str] = Counter()
        #: SUBSCRIBEs that wait for a publisher.
        self.waiting: set[IncomingSubscribe] = set()
