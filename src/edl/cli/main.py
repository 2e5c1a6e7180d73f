"""The `edl` command: what can be asked, and how errors are told.

Exit status: 0 only for success, 2 for what the user can put right, 1 otherwise, and 128 + the
signal's number for what a signal ended.
"""

from __future__ import annotations

import argparse
import errno
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

from edl import __version__
from edl.cli import audit, job, profile, run, simulate
from edl.cli.numbers import count, duration, positive, seconds
from edl.cli.output import MODES
from edl.config import STRAGGLER_POLICIES
from edl.errors import EdlError, UsageError

__all__ = ["main"]

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """Tells errors as the rest of the program does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"edl: {message}; see `{self.prog} --help`\n")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        try:
            options = make_parser().parse_args(arguments)
            command: Command = options.command
            return command(options)
        finally:
            # What the buffer holds would be written after all else, where no reader is an error.
            if sys.stdout is not None:  # as it is for whoever has closed it
                sys.stdout.flush()
    except UsageError as error:
        print(f"edl: {error}", file=sys.stderr)
        return 2
    except EdlError as error:
        print(f"edl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"edl: {interrupt}" if interrupt.args else "edl: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        run.give_up_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        run.give_up_stdout()
        what = error.filename or "what it has to say"  # which has no name
        print(f"edl: {what} cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def make_parser() -> Parser:
    parser = Parser(
        prog="edl",
        description="Elastic training: start a job, and change its workers while it trains.",
        epilog="`edl COMMAND --help` shows examples. Jobs are kept in $EDL_HOME (~/.edl).",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"edl {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_run(commands)
    add_reading(commands)
    add_changing(commands)
    add_profile(commands)
    simulate.add_simulate(commands)
    return parser


def add(commands: Commands, name: str, does: str, call: Command, examples: str) -> Parser:
    parser = commands.add_parser(
        name,
        help=does,
        description=does[0].upper() + does[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=call)
    return parser


def add_run(commands: Commands) -> None:
    parser = add(
        commands,
        "run",
        "start a job and show it until it is over",
        run.run,
        "edl run train.py                      2 workers, or one per GPU\n"
        "edl run -n 4 train.py --lr 0.1        what follows SCRIPT is for the script\n"
        "edl run -n 2 --min 2 --max 8 --name mnist train.py\n"
        "edl run -d --name mnist train.py      in the background; then `edl logs -f mnist`\n"
        "edl run --checkpoint runs/mnist --max-restarts 5 train.py\n"
        "edl run --grace 25 train.py           where machines are taken away after 30 s\n"
        "edl run --keep 4 train.py             a new worker for each that is lost\n"
        "edl run --stragglers remove train.py  go on without a worker that is too slow\n"
        "edl run --warm 2 train.py             new workers are there in a moment\n"
        "edl run --store etcd://10.0.0.5:2379 --host 10.0.0.7 train.py\n"
        "edl run --store @store.url train.py   the store's URL, with a password, from a file",
    )
    parser.add_argument("-n", "--workers", type=positive, default=0, help="workers to start with")
    parser.add_argument("--min", type=positive, default=1, help="never fewer workers (1)")
    parser.add_argument("--max", type=positive, default=0, help="never more workers (no limit)")
    parser.add_argument("--name", help="the job's name (SCRIPT's and a number)")
    parser.add_argument("--slots", type=positive, default=0, help="how many slots there are")
    parser.add_argument("--gpus", metavar="LIST", help="GPUs to use, as 0,1, or none (all)")
    parser.add_argument(
        "--oversubscribe", action="store_true", help="allow several workers on one slot"
    )
    parser.add_argument("--port", type=int, default=0, help="port of the launcher (any)")
    add_lasting(parser)
    add_warm(parser)
    parser.add_argument(
        "--output", choices=MODES, default="one", help="whose output to show: rank 0's, all, none"
    )
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script"
    )


def add_warm(parser: Parser) -> None:
    parser.add_argument(
        "--warm",
        type=count,
        default=0,
        metavar="N",
        help="fork workers off a process that has imported the framework, and keep N waiting (0)",
    )
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module too before workers are forked; may be repeated",
    )


def add_lasting(parser: Parser) -> None:
    """What outlives a worker, all of them, or this machine."""
    parser.add_argument(
        "--keep",
        type=positive,
        default=0,
        metavar="N",
        help="replace lost workers while there are fewer than N (never)",
    )
    parser.add_argument(
        "--stragglers",
        choices=STRAGGLER_POLICIES,
        help="what to do about a worker that is slower than the others (warn)",
    )
    parser.add_argument(
        "--checkpoint", metavar="URL", help="write checkpoints to this folder or URL"
    )
    parser.add_argument(
        "--no-audit", action="store_true", help="keep no log of used samples for `edl audit`"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint there"
    )
    parser.add_argument(
        "--max-restarts",
        type=count,
        metavar="N",
        help="when no worker is left, go on from the last checkpoint; at most N times in a row "
        "without getting further (3 with --checkpoint, else 0)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="how long a worker that got SIGTERM has until its next boundary, before it is a "
        "forced exit (as long as it takes)",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="etcd://HOST:PORT, etcds://... or zookeeper://HOST:PORT; @FILE: the URL in that file "
        "(a store of its own)",
    )
    parser.add_argument(
        "--host",
        metavar="IP",
        default="127.0.0.1",
        help="this machine's address for workers elsewhere (127.0.0.1)",
    )


def add_reading(commands: Commands) -> None:
    parser = add(commands, "ps", "list jobs, running ones first", job.ps, "edl ps\nedl ps --json")
    add_json(parser)

    parser = add(
        commands,
        "status",
        "show a job: its workers, step, speed and adjustment in flight",
        job.status,
        "edl status mnist\nedl status mnist --json",
    )
    add_job(parser)
    add_json(parser)

    parser = add(
        commands,
        "logs",
        "print what workers wrote",
        job.logs,
        "edl logs mnist                  all workers, each line with its worker's id\n"
        "edl logs mnist -f --worker w0   one worker, until the job is over",
    )
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    parser.add_argument("--worker", metavar="ID", help="this worker's only")

    parser = add(
        commands,
        "events",
        "print a job's history",
        job.events,
        "edl events mnist --follow\nedl events mnist --request 4f2a91c0 --json",
    )
    add_job(parser)
    add_json(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    parser.add_argument("--request", metavar="ID", help="of this request only")
    parser.add_argument("--since", type=int, default=0, metavar="SEQ", help="after this number")

    parser = add(
        commands,
        "audit",
        "prove that each sample of an epoch was used exactly once, or name one that was not",
        audit.audit,
        "edl audit mnist\nedl audit mnist --json",
    )
    add_job(parser)
    add_json(parser)


def add_changing(commands: Commands) -> None:
    parser = add(
        commands,
        "scale-out",
        "add workers to a running job",
        job.scale_out,
        "edl scale-out mnist --add 2\nedl scale-out mnist --add 1 --for 4m\n"
        "edl scale-out mnist --gpus localhost:2,3 --no-wait",
    )
    add_job(parser)
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument("--add", type=positive, metavar="N", help="so many, on free slots")
    wish.add_argument("--gpus", metavar="HOST:INDEX,...", help="one on each of these slots")
    parser.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        metavar="TIME",
        help="they are gone again so long after this request: 240s, 4m or 1h (for good)",
    )
    add_request(parser)

    parser = add(
        commands,
        "scale-in",
        "remove workers from a running job",
        job.scale_in,
        "edl scale-in mnist --remove 1\nedl scale-in mnist --workers w1,w3\n"
        "edl scale-in mnist --gpus localhost:2",
    )
    add_job(parser)
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument("--remove", type=positive, metavar="N", help="so many; the leader last")
    wish.add_argument("--workers", metavar="ID,...", help="these workers")
    wish.add_argument("--gpus", metavar="HOST:INDEX,...", help="the workers on these slots")
    add_request(parser)

    add_migrate(commands)

    parser = add(
        commands,
        "stop",
        "end a job at its step's end",
        job.stop,
        "edl stop mnist\nedl stop mnist --force     kill its workers now",
    )
    add_job(parser)
    parser.add_argument("--force", action="store_true", help="kill the workers now")
    parser.add_argument("--no-wait", action="store_true", help="return at once")
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help="wait (60)")
    add_json(parser)


def add_migrate(commands: Commands) -> None:
    parser = add(
        commands,
        "migrate",
        "move workers of a running job to other slots, in one adjustment",
        job.migrate,
        "edl migrate mnist --from localhost:0,1 --to localhost:2,3\n"
        "edl migrate mnist --workers w1 --to localhost:4    by id; any worker, the leader too\n"
        "edl migrate mnist --from localhost:0 --add 1       to any free slot\n"
        "edl migrate mnist --from localhost:0,1 --add 1     two leave and one comes",
    )
    add_job(parser)
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument(
        "--from", dest="leave", metavar="HOST:INDEX,...", help="the workers on these slots leave"
    )
    wish.add_argument("--workers", metavar="ID,...", help="these workers leave")
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument("--to", metavar="HOST:INDEX,...", help="a new worker on each of these slots")
    wish.add_argument("--add", type=positive, metavar="N", help="so many, on free slots")
    add_request(parser)


def add_profile(commands: Commands) -> None:
    parser = add(
        commands,
        "profile",
        "measure throughput and GPU efficiency of a job at each number of workers",
        profile.profile,
        "edl profile mnist                        as it is now, at once\n"
        "edl profile mnist --min-p 1 --max-p 8    from 8 workers down to 1, then as before\n"
        "edl profile mnist --max-p 8 --csv mnist.csv --plot mnist.png\n"
        "edl profile --max-p 4 --script train.py --lr 0.1    a job for this alone",
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="the job's name, see `edl ps`")
    parser.add_argument("--min-p", type=positive, metavar="P", help="the fewest workers (1)")
    parser.add_argument("--max-p", type=positive, metavar="P", help="the most (as now, or --min-p)")
    parser.add_argument(
        "--steps", type=positive, default=20, metavar="N", help="mini-batches to measure (20)"
    )
    parser.add_argument(
        "--warm-up", type=count, default=5, metavar="N", help="those before, not counted (5)"
    )
    parser.add_argument("--csv", metavar="FILE", help="write a table too")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture too, as profile.png")
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="for each adjustment (60)"
    )
    add_json(parser)
    parser.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGS]",
        help="start this script for it, and stop it afterwards; comes last",
    )


def add_job(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="the job's name, see `edl ps`")


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def add_request(parser: Parser) -> None:
    parser.add_argument(
        "--no-wait", action="store_true", help="return when accepted, not when complete"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="give up after so long (60)"
    )
    parser.add_argument(
        "--request-id", metavar="ID", help="the same id is carried out once, however often asked"
    )
    add_json(parser)


if __name__ == "__main__":
    sys.exit(main())
