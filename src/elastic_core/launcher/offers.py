"""What the agent itself offers to whoever asks it by a name."""

import queue
from collections.abc import Callable, Mapping
from typing import Final

from elastic_core.errors import ElasticError
from elastic_core.hooks.handle import Offer
from elastic_core.reactor import Reactor
from elastic_core.reports import Answer

_ANSWER_S: Final = 5.0
"""How long the loop may take to answer a question about itself."""


def done_on_loop(reactor: Reactor, action: Callable[[], str], *, done: str) -> Offer:
    """Return an offer that has the loop do something; `action` returns why not, empty when it is `done`."""

    def answer(params: Mapping[str, str]) -> Answer:
        refusals: queue.SimpleQueue[str] = queue.SimpleQueue()
        reactor.post(lambda: refusals.put(action()))
        try:
            refusal = refusals.get(timeout=_ANSWER_S)
        except queue.Empty:
            refusal = f"the agent's loop has not answered within {_ANSWER_S:g} s"
        if refusal:
            raise ElasticError(refusal)
        return Answer(content=done)

    return answer
