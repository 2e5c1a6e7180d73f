"""What an agent's machines send to many peers is encoded once, and everything keeps its order."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from edl.errors import PeerError
from edl.protocol.effects import Dismiss, Effect, Send
from edl.protocol.events import Event, StateSeen
from edl.protocol.messages import MESSAGES, NotLeader, Ping
from edl.types import WorkerId
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from tests.contract.servers import until
from tests.integration.test_groups_left import PATIENCE_S, agent_in

PEERS = 4


def test_one_message_to_many_workers_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(MESSAGES)
    first = Ping(generation=1, worker=WorkerId("w0"))
    # Equal to the first one, but another object: only the very same message is known to be equal.
    second = Ping(generation=1, worker=WorkerId("w0"))
    last = NotLeader(request_id="r")
    encoded: list[object] = []
    encode = Codec.encode

    def counting(own: Codec, message: object) -> bytes:
        if any(message is each for each in (first, second, last)):
            encoded.append(message)
        return encode(own, message)

    with ExitStack() as stack:
        agent = stack.enter_context(agent_in())
        address = agent.node.me.address
        channels = [
            stack.enter_context(Channel(address, job="job", secret=b"secret", codec=codec))
            for _ in range(PEERS)
        ]
        until(lambda: len(agent._incoming) == PEERS, "all connections")
        peers = sorted(agent._incoming)
        effects: list[Effect] = [
            *(Send(peer=peer, message=first) for peer in [*peers, 999]),
            *(Send(peer=peer, message=second) for peer in peers),
            *(Send(peer=peer, message=last) for peer in reversed(peers)),
        ]
        usual = agent.node.step

        def step(event: Event, now: float) -> list[Effect]:
            return effects if event is word else usual(event, now)

        word = StateSeen(value=None)
        monkeypatch.setattr(agent.node, "step", step)
        monkeypatch.setattr(Codec, "encode", counting)
        agent.post(word)
        heard = [[each.receive(PATIENCE_S) for _ in range(3)] for each in channels]
        assert heard == [[first, second, last]] * PEERS
        assert [id(each) for each in encoded] == [id(each) for each in (first, second, last)]


def test_a_worker_that_retires_leads_no_more_while_its_script_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = Codec(MESSAGES)
    last = Ping(generation=1, worker=WorkerId("w0"))
    with ExitStack() as stack:
        agent = stack.enter_context(agent_in())
        address = agent.node.me.address
        channel = stack.enter_context(Channel(address, job="job", secret=b"secret", codec=codec))
        until(lambda: len(agent._incoming) == 1, "the connection")
        (peer,) = agent._incoming
        usual, word = agent.node.step, StateSeen(value=None)

        def step(event: Event, now: float) -> list[Effect]:
            if event is not word:
                return usual(event, now)
            retire = Dismiss(why="no peer reaches it", failed=False, retire=True)
            return [Send(peer=peer, message=last), retire]

        monkeypatch.setattr(agent.node, "step", step)
        agent.post(word)
        # This thread stands for the script: it calls nothing of the agent's.
        assert channel.receive(PATIENCE_S) == last
        with pytest.raises(PeerError):
            channel.receive(PATIENCE_S)
        assert agent.dismissal is not None
