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
from edl.cli import audit, clean, job, profile, run, simulate
from edl.cli.numbers import count, duration, positive, seconds
from edl.cli.output import MODES
from edl.config import DIVERGENCE_POLICIES, STRAGGLER_POLICIES
from edl.errors import EdlError, UsageError

__all__ = ["main"]

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """Prints errors as the rest of the program does."""

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
        # A write to an open stream does not say which file it was.
        what = error.filename or "standard output"
        print(f"edl: cannot write {what}: {error.strerror}", file=sys.stderr)
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
    add_clean(commands)
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
        "start a job and watch it until it ends",
        run.run,
        "edl run train.py                      2 workers, or one per GPU\n"
        "edl run -n 4 train.py --lr 0.1        what follows SCRIPT is for the script\n"
        "edl run -n 2 --min 2 --max 8 --name mnist train.py\n"
        "edl run -d --name mnist train.py      in the background; then `edl logs -f mnist`\n"
        "edl run --checkpoint runs/mnist --checkpoint-every 10m --max-restarts 5 train.py\n"
        "edl run --grace 25 train.py           on machines that are reclaimed 30 s after a notice\n"
        "edl run --keep 4 train.py             a new worker for each that is lost\n"
        "edl run --stragglers remove train.py  remove a worker that is too slow\n"
        "edl run --warm 2 train.py             new workers join in a moment\n"
        "edl run --store etcd://10.0.0.5:2379 --host 10.0.0.7 train.py\n"
        "edl run --store @store.url train.py   the store's URL, with a password, from a file",
    )
    parser.add_argument(
        "-n",
        "--workers",
        type=positive,
        default=0,
        help="number of workers at the start (default: 2, or one per GPU)",
    )
    parser.add_argument(
        "--min",
        type=positive,
        default=1,
        help="fewest workers that requests may leave (default: 1)",
    )
    parser.add_argument("--max", type=positive, default=0, help="most workers (default: no limit)")
    parser.add_argument("--name", help="job name (default: SCRIPT and a number)")
    add_slots(parser)
    parser.add_argument(
        "--port", type=int, default=0, help="port of the launcher (default: any free port)"
    )
    add_lasting(parser)
    add_checking(parser)
    add_warm(parser)
    parser.add_argument(
        "--output",
        choices=MODES,
        default="one",
        help="output to show: of rank 0 (one), of all workers, or none (default: one)",
    )
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script"
    )


def add_slots(parser: Parser) -> None:
    parser.add_argument(
        "--slots",
        type=positive,
        default=0,
        metavar="N",
        help="most slots this job may use (default: all GPUs; no limit without GPUs)",
    )
    parser.add_argument(
        "--gpus", metavar="LIST", help="GPUs to choose from: 0,1 or none (default: all)"
    )
    parser.add_argument(
        "--oversubscribe", action="store_true", help="allow several workers on one slot"
    )
    parser.add_argument(
        "--share-gpus", action="store_true", help="use GPUs even while other jobs hold them"
    )


def add_warm(parser: Parser) -> None:
    parser.add_argument(
        "--warm",
        type=count,
        default=0,
        metavar="N",
        help="fork workers from a process that has already imported the framework, and keep N "
        "of them waiting (default: 0)",
    )
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="also import this module before workers are forked; may be repeated",
    )


def add_checking(parser: Parser) -> None:
    """How replicas are compared, and what is done when they differ."""
    parser.add_argument(
        "--on-divergence",
        choices=DIVERGENCE_POLICIES,
        help="what to do when workers' replicas of the model differ: stop the job, warn, or resync "
        "them from the majority (stop)",
    )
    parser.add_argument(
        "--digest-steps",
        type=count,
        metavar="N",
        help="compare all parameters and optimizer state within N steps; 0: compare nothing (200)",
    )


def add_lasting(parser: Parser) -> None:
    """What outlives a worker, all of them, or this machine."""
    parser.add_argument(
        "--keep",
        type=positive,
        default=0,
        metavar="N",
        help="replace lost workers while the job has fewer than N (default: do not)",
    )
    parser.add_argument(
        "--stragglers",
        choices=STRAGGLER_POLICIES,
        help="what to do with a worker that is slower than the others (default: warn)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="URL",
        help="write checkpoints to this folder or URL; @FILE: the URL in it",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="STEPS|TIME",
        help="write one every 500 (steps), 10m, or 500,10m: whichever comes first (default: 1000 "
        "steps or 10 minutes, or EDL_CHECKPOINT_STEPS and EDL_CHECKPOINT_S)",
    )
    parser.add_argument(
        "--no-audit", action="store_true", help="keep no log of used samples for `edl audit`"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume from the last checkpoint in --checkpoint, if there is one",
    )
    parser.add_argument(
        "--max-restarts",
        type=count,
        metavar="N",
        help="when no worker is left, restart from the last checkpoint; at most N times in a row "
        "without progress (default: 3 with --checkpoint, else 0)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="after SIGTERM, a worker that has not reached a step boundary within S seconds exits "
        "at once (default: no limit)",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="etcd://HOST:PORT, etcds://... or zookeeper://HOST:PORT; @FILE reads the URL from a "
        "file (default: a store embedded in the launcher)",
    )
    parser.add_argument(
        "--host",
        metavar="IP",
        default="127.0.0.1",
        help="address of this machine for workers on other machines (default: 127.0.0.1)",
    )


def add_reading(commands: Commands) -> None:
    parser = add(
        commands,
        "ps",
        "list jobs, running ones first",
        job.ps,
        "edl ps\nedl ps --all     also the earlier run of each name, NAME.old\nedl ps --json",
    )
    parser.add_argument("-a", "--all", action="store_true", help="also earlier runs, NAME.old")
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
        "print the output of workers",
        job.logs,
        "edl logs mnist                  all workers, each line with its worker's id\n"
        "edl logs mnist -f --worker w0   one worker, until the job is over",
    )
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the job is over")
    parser.add_argument("--worker", metavar="ID", help="only this worker")

    parser = add(
        commands,
        "events",
        "print the events of a job: adjustments, failures, recoveries",
        job.events,
        "edl events mnist --follow\nedl events mnist --request 4f2a91c0 --json",
    )
    add_job(parser)
    add_json(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the job is over")
    parser.add_argument("--request", metavar="ID", help="only events of this request")
    parser.add_argument(
        "--since", type=int, default=0, metavar="SEQ", help="only events after this number"
    )
    add_audit(commands)


def add_audit(commands: Commands) -> None:
    parser = add(
        commands,
        "audit",
        "prove that each sample of an epoch was used exactly once, or name one that was not",
        audit.audit,
        "edl audit mnist\nedl audit mnist --strict\nedl audit mnist --json",
    )
    add_job(parser)
    add_json(parser)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 also if an epoch ended before all its samples were used",
    )


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
    wish.add_argument(
        "--add", type=positive, metavar="N", help="number of workers, on any free slots"
    )
    wish.add_argument("--gpus", metavar="HOST:INDEX,...", help="one on each of these slots")
    parser.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        metavar="TIME",
        help="remove them automatically after this long: 240s, 4m, 1h or 7d (default: never)",
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
    wish.add_argument(
        "--remove", type=positive, metavar="N", help="number of workers; the leader is removed last"
    )
    wish.add_argument("--workers", metavar="ID,...", help="ids of the workers to remove")
    wish.add_argument("--gpus", metavar="HOST:INDEX,...", help="the workers on these slots")
    add_request(parser)

    add_migrate(commands)
    add_stop(commands)


def add_stop(commands: Commands) -> None:
    parser = add(
        commands,
        "stop",
        "stop a job at the end of its current step",
        job.stop,
        "edl stop mnist\nedl stop mnist --force     kill its workers now",
    )
    add_job(parser)
    parser.add_argument("--force", action="store_true", help="kill the workers now")
    parser.add_argument("--no-wait", action="store_true", help="return at once")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="give up waiting after S seconds (default: 60)",
    )
    add_json(parser)


def add_clean(commands: Commands) -> None:
    parser = add(
        commands,
        "clean",
        "remove the folders of jobs that are over: logs, events and results",
        clean.clean,
        "edl clean --dry-run            what would be removed\n"
        "edl clean                      every job that is over, after a question\n"
        "edl clean --older-than 7d      only those that ended more than 7 days ago\n"
        "edl clean mnist mnist.old      these only\n"
        "edl clean --yes --json         for scripts",
    )
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="jobs to remove (all that are over)")
    parser.add_argument(
        "--older-than",
        type=duration,
        metavar="TIME",
        help="only jobs that ended longer ago: 90s, 4m, 12h or 7d (any)",
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="list what would be removed; remove nothing"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="remove without a question")
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
    wish.add_argument("--workers", metavar="ID,...", help="ids of the workers that leave")
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument("--to", metavar="HOST:INDEX,...", help="a new worker on each of these slots")
    wish.add_argument(
        "--add", type=positive, metavar="N", help="number of workers, on any free slots"
    )
    add_request(parser)


def add_profile(commands: Commands) -> None:
    parser = add(
        commands,
        "profile",
        "measure throughput and GPU efficiency of a job at each number of workers",
        profile.profile,
        "edl profile mnist                        at the present number, at once\n"
        "edl profile mnist --min-p 1 --max-p 8    from 8 workers down to 1, then as before\n"
        "edl profile mnist --max-p 8 --csv mnist.csv --plot mnist.png\n"
        "edl profile --max-p 4 --script train.py --lr 0.1    start a job only to measure it",
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="job name, see `edl ps`")
    parser.add_argument("--min-p", type=positive, metavar="P", help="fewest workers (default: 1)")
    parser.add_argument(
        "--max-p", type=positive, metavar="P", help="most workers (default: as now, or --min-p)"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=20,
        metavar="N",
        help="mini-batches to measure at each number (default: 20)",
    )
    parser.add_argument(
        "--warm-up",
        type=count,
        default=5,
        metavar="N",
        help="mini-batches to skip before measuring (default: 5)",
    )
    parser.add_argument("--csv", metavar="FILE", help="also write the table to this file")
    parser.add_argument(
        "--plot", metavar="FILE", help="also draw a plot: profile.png, .svg or .pdf"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="give up an adjustment after S seconds (default: 60)",
    )
    add_json(parser)
    parser.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGS]",
        help="start a job of this script, measure it and stop it; must be the last option",
    )


def add_job(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="job name, see `edl ps`")


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_request(parser: Parser) -> None:
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="return when the request is accepted, not when it is complete",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="give up after S seconds (default: 60)",
    )
    parser.add_argument(
        "--request-id",
        metavar="ID",
        help="a request with the same id is carried out once, however often it is sent",
    )
    add_json(parser)


if __name__ == "__main__":
    sys.exit(main())
