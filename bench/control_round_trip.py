"""How long is a control message's round trip, beside a bare blocking socket's?

    python bench/control_round_trip.py [--blocks 40] [--trips 500]

Two processes on the loopback, messages of about 200 bytes, blocks of both kinds interleaved. The
bare echo is `recv` and `sendall` on a blocking socket and nothing else. A control message takes
what it takes in a job: encoded, framed, sent by one hub's thread, decoded and answered by another.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import socket
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edl.protocol.messages import MESSAGES, BoardKey  # noqa: E402
from edl.types import Address  # noqa: E402
from edl.wire.codec import Codec  # noqa: E402
from edl.wire.hub import Hub, Peer  # noqa: E402
