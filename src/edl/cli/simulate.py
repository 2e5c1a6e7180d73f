"""`edl simulate`: what policies would do with a trace of jobs, side by side.

Everything that can be wrong with the question is told before any work; what is written appears
whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from edl.cli.numbers import count, positive
from edl.cli.say import say
from edl.cli.signals import Interrupted, interruptible
from edl.cli.simulate_numbers import factor, load, price, round_length, window
from edl.cli.simulate_runs import run_policies, watch
from edl.cli.simulate_table import (
    as_fields,
    check_jobs,
    print_comparison,
    trace_notes,
    write_jobs,
)
from edl.errors import UsageError
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.report import check_report, write_report
from edl.simulator.setting import MECHANISMS, PLACEMENTS, Setting

__all__ = ["add_simulate", "simulate"]

Commands: TypeAlias = "argparse._SubParsersAction[Any]"

GENERATED = "generate:"
MOST_JOBS = 10_000_000  # of a generated trace; more do not fit into memory
LOAD = 0.9  # of a generated trace, unless said
PRICES = {
    "stop_s": "how long everybody of a job stands still when it grows",
    "shrink_s": "the same when it shrinks",
    "prepare_s": "how long its new GPUs are held before they do anything",
    "start_s": "from its first GPUs to its first step",
    "preempt_s": "seconds of training that a job loses when it is preempted",
}
EXAMPLES = """examples:
  edl simulate --trace generate:5000 --policy tiresias,elastic-tiresias --nodes 16 --gpus-per-node 8
  edl simulate --trace philly.csv --policy tiresias,elastic-tiresias,wf-las --nodes 288 \\
      --gpus-per-node 8 --report out        # then open out/index.html
  edl simulate --trace philly.csv --policy fifo --nodes 288 --gpus-per-node 8 --load 1.2
  edl simulate --trace jobs.csv --policy wf-srpt --nodes 8 --gpus-per-node 8 \\
      --mechanism stop-resume --start-s 60  # what restarts would cost instead
  edl simulate --trace jobs.csv --policy tiresias,optimus --nodes 8 --gpus-per-node 8 \\
      --json --jobs-csv jobs-out.csv        # for programs
  edl simulate --trace jobs.csv --policy wf-las --nodes 8 --gpus-per-node 8 \\
      --report out --window 10h,12h         # these two hours as a Gantt chart"""


class _Help(argparse.Action):
    """Help with the policies in it, which are loaded only for that."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS)
        self.help = "show this help message and exit"

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from edl.simulator.speeds import describe_models

        parts = ["policies:", listed(policies_known().items()), ""]
        parts += ["models built in:", listed(describe_models(None)), "", EXAMPLES]
        parser.epilog = "\n".join(parts)
        parser.print_help()
        parser.exit()


class _ListPolicies(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(listed(policies_known().items(), indent=""))
        parser.exit()


class _ListModels(argparse.Action):
    """Those of a table, or those built in."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: object, given: object, *_: object
    ) -> None:
        from edl.simulator.speeds import describe_models

        try:
            print(listed(describe_models(str(given) if given else None), indent=""))
        except UsageError as error:
            parser.error(str(error))
        parser.exit()


def listed(lines: Iterable[tuple[str, str]], *, indent: str = "  ") -> str:
    pairs = list(lines)
    width = max(len(name) for name, _ in pairs) + 2
    return "\n".join(f"{indent}{name:<{width}}{does}" for name, does in pairs)


def add_simulate(commands: Commands) -> None:
    does = "simulate scheduling policies on a trace of jobs, and compare them"
    parser = commands.add_parser(
        "simulate",
        help=does,
        description=does[0].upper() + does[1:] + ". The first policy is what others are "
        "compared with.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.set_defaults(command=simulate)
    add_lists(parser)
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE",
        help="jobs, in any of the formats of docs/traces.md; or generate:JOBS, a Philly-like one",
    )
    parser.add_argument(
        "--standalone",
        metavar="FILE",
        help="how long a Pollux workload's jobs take alone (standalone.csv in its folder)",
    )
    parser.add_argument(
        "--policy", required=True, metavar="P[,P...]", help="one of those below, or several"
    )
    parser.add_argument(
        "--nodes", type=positive, required=True, metavar="N", help="machines of the cluster"
    )
    parser.add_argument(
        "--gpus-per-node", type=positive, required=True, metavar="N", help="GPUs of each"
    )
    parser.add_argument(
        "--load",
        type=load,
        metavar="X",
        help="stretch or squeeze submissions to this offered load (as in the file; generated: 0.9)",
    )
    parser.add_argument(
        "--seed", type=count, default=0, metavar="N", help="of whatever is drawn (0)"
    )
    add_models(parser)
    add_planning(parser)
    add_prices(parser)
    add_outputs(parser)


def add_lists(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action=_Help)
    parser.add_argument(
        "--list-policies", action=_ListPolicies, nargs=0, help="list the policies and exit"
    )
    parser.add_argument(
        "--list-models",
        action=_ListModels,
        nargs="?",
        metavar="FILE",
        help="list the models built in, or those of a table of speeds, and exit",
    )


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        metavar="FILE",
        help="speeds of models, see docs/simulate.md (default: those built in)",
    )
    parser.add_argument(
        "--models-source",
        metavar="S",
        help="of a table of measured speeds, only what this source measured",
    )
    parser.add_argument(
        "--models-gpu", metavar="GPU", help="the same, only what was measured on this kind of GPU"
    )


def add_planning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default=PLACEMENTS[0],
        help="whether it matters which GPUs a job has (counts: it does not)",
    )
    parser.add_argument(
        "--round-s",
        type=round_length,
        metavar="S",
        help="plan only every S seconds (default: at every event)",
    )
    parser.add_argument(
        "--knob",
        type=factor,
        metavar="X",
        help="under Tiresias, a job that waited X times as long as it ran returns to the first "
        "queue (default: 0, never)",
    )


def add_prices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what an adjustment costs, in seconds")
    group.add_argument(
        "--mechanism",
        choices=tuple(MECHANISMS),
        default="edl",
        help="whose prices to use (default: edl)",
    )
    for name, does in PRICES.items():
        usual = ", ".join(f"{each} {getattr(MECHANISMS[each], name):g}" for each in MECHANISMS)
        group.add_argument(flag_of(name), type=price, metavar="S", help=f"{does} ({usual})")


def add_outputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON")
    group.add_argument("--jobs-csv", metavar="FILE", help="also write a row per job and policy")
    group.add_argument(
        "--report", metavar="DIR", help="also write DIR/index.html, a page with charts"
    )
    group.add_argument(
        "--window",
        type=window,
        metavar="FROM,TO",
        help="times of the page's Gantt chart, as 10h,12h or 600,1200 (the busiest)",
    )


def simulate(options: argparse.Namespace) -> int:
    policies = policies_of(options.policy)
    setting = setting_of(options)
    check_knob(policies, setting)
    check_models(setting)
    check_outputs(options)
    try:
        with interruptible():
            trace = trace_of(options, setting.capacity)
            if setting.models is None and trace.speeds is not None:
                setting = replace(setting, models=trace.speeds)
                check_models(setting)
            outcomes = run(trace, policies, setting)
            notes = trace_notes(trace, outcomes)
            if options.jobs_csv is not None:
                write_jobs(Path(options.jobs_csv), outcomes)
            if options.report is not None:
                page = write_report(
                    options.report, outcomes, trace_notes=notes, how=how_of(options, setting)
                )
                say(f"the report is {page}")
    except Interrupted as signalled:
        return 128 + signalled.number
    if options.json:
        print(json.dumps(as_fields(trace, setting, outcomes), indent=2))
    else:
        print_comparison(trace, outcomes, notes)
    return 0


def run(trace: Trace, policies: Sequence[str], setting: Setting) -> list[Outcome]:
    # Only here: what it loads is of no use to other commands, which are to start at once.
    from edl.simulator.run import simulate as engine

    with watch(policies, len(trace.jobs)) as watching:
        return run_policies(engine, trace, policies, setting, watch=watching)


# -- the question ----------------------------------------------------------------------------


def policies_known() -> dict[str, str]:
    from edl.simulator.run import POLICIES

    return POLICIES


def policies_of(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    known = policies_known()
    for place, name in enumerate(names):
        if name not in known:
            raise UsageError(f"there is no policy {name!r}; choose from {', '.join(known)}")
        if name in names[:place]:
            raise UsageError(f"policy {name} is given twice")
    return names


def setting_of(options: argparse.Namespace) -> Setting:
    usual = MECHANISMS[options.mechanism]
    given = {name: getattr(options, name) for name in PRICES if getattr(options, name) is not None}
    prices = replace(usual, **given)
    return Setting(
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        mechanism=options.mechanism if prices == usual else "custom",
        prices=prices,
        placement=options.placement,
        seed=options.seed,
        models=options.models,
        models_source=options.models_source,
        models_gpu=options.models_gpu,
        # Nobody looks at it without a report.
        window_s=options.window if options.report is not None else (0.0, 0.0),
        knob=options.knob or 0.0,
        round_s=options.round_s or 0.0,
    )


def check_knob(policies: Sequence[str], setting: Setting) -> None:
    from edl.simulator.run import QUEUED

    if setting.knob and not set(QUEUED) & set(policies):
        raise UsageError(f"--knob is of no use without a policy of {', '.join(QUEUED)}")


def check_models(setting: Setting) -> None:
    """Read once for nothing, so that a bad file is told now and not by every process."""
    from edl.simulator.speeds import Speeds

    Speeds(
        models=setting.models,
        seed=setting.seed,
        gpus_per_node=setting.gpus_per_node,
        capacity=setting.capacity,
        source=setting.models_source,
        gpu=setting.models_gpu,
    )


def check_outputs(options: argparse.Namespace) -> None:
    """What could not be written is told now, not after an hour."""
    for flag, path in (("--jobs-csv", options.jobs_csv), ("--report", options.report)):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{flag} {path} cannot be written: there is no such folder")
    if (
        options.jobs_csv is not None
        and Path(options.jobs_csv).absolute() == Path(options.trace).absolute()
    ):
        raise UsageError(f"--jobs-csv {options.jobs_csv} is the trace itself; give another file")
    if options.jobs_csv is not None and Path(options.jobs_csv).is_dir():
        raise UsageError(f"--jobs-csv {options.jobs_csv} cannot be written: it is a folder")
    report = Path(options.report or ".")
    if report.exists() and not report.is_dir():
        raise UsageError(f"--report {report} cannot be written: it is no folder")
    if options.window is not None and options.report is None:
        raise UsageError("--window is of the Gantt chart in a report: give --report DIR too")
    if options.jobs_csv is not None:
        check_jobs(Path(options.jobs_csv))
    if options.report is not None:
        check_report(report)


def trace_of(options: argparse.Namespace, capacity: int) -> Trace:
    from edl.simulator.generate import generate, with_load
    from edl.simulator.trace import read_trace

    if options.trace.startswith(GENERATED):
        jobs = options.trace.removeprefix(GENERATED)
        if not jobs.isdecimal() or int(jobs) < 1:
            raise UsageError(f"--trace {options.trace}: {jobs!r} is not a number of jobs")
        if int(jobs) > MOST_JOBS:
            raise UsageError(f"--trace {options.trace}: at most {MOST_JOBS:,} jobs are generated")
        if options.standalone is not None:
            raise UsageError("--standalone is for Pollux workloads; a generated trace needs none")
        return generate(int(jobs), capacity=capacity, load=options.load or LOAD, seed=options.seed)
    trace = read_trace(options.trace, capacity=capacity, standalone=options.standalone)
    return trace if options.load is None else with_load(trace, capacity, options.load)


# -- how it was run --------------------------------------------------------------------------


def how_of(options: argparse.Namespace, setting: Setting) -> list[tuple[str, str]]:
    """For the report, beside what the outcomes know themselves."""
    prices = ", ".join(
        f"{name.removesuffix('_s')} {getattr(setting.prices, name):g} s" for name in PRICES
    )
    return [
        ("Prices", prices),
        ("Placement", setting.placement),
        ("Models", setting.models or "built in"),
        ("Command", command_of(options)),
    ]


def command_of(options: argparse.Namespace) -> str:
    """What gives the same again."""
    names = ["trace", "standalone", "policy", "nodes", "gpus_per_node", "load", "seed"]
    names += ["models", "models_source", "models_gpu", "placement", "round_s", "knob"]
    words = ["edl", "simulate"]
    for name in [*names, "mechanism", *PRICES, "report"]:
        value = getattr(options, name)
        if value is not None:
            words += [flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)]
    if options.window is not None:
        words += ["--window", ",".join(f"{each:.12g}" for each in options.window)]
    return shlex.join(words)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")
